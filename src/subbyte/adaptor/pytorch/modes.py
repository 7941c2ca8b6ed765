"""Whether the parts of a model train or evaluate."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval(), and then every part of it in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def take_modes(model: nn.Module, other: nn.Module) -> None:
    """Put the parts of a model in the modes of those of the same name in another."""
    modes = {name: module.training for name, module in other.named_modules()}
    for name, module in model.named_modules():
        while name not in modes:
            name = name.rpartition(".")[0]  # a part of its own goes with what it is in
        module.training = modes[name]
