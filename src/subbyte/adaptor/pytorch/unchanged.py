"""Running a model and leaving it as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Run in eval() without gradients; buffers, modes and random state are put back."""
    modes = {module: module.training for module in model.modules()}
    held = {module: dict(module._buffers) for module in modes}
    values = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    try:
        model.eval()
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        _put_back(held, values)


def _put_back(held: dict[nn.Module, dict[str, Tensor | None]], values: dict[Tensor, Tensor]) -> None:
    """The buffers that modules had, where a forward put others in their place, and what they held."""
    for module, buffers in held.items():
        module._buffers.update({name: buffer for name, buffer in buffers.items() if name in module._buffers})
    with torch.no_grad():
        for buffer, value in values.items():
            if buffer.shape == value.shape:
                buffer.copy_(value)
