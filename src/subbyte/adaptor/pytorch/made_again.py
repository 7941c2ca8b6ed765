"""Values that are made again on the way back rather than kept: memory for a little time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def made_again(value: Tensor, make: Callable[[], Tensor]) -> Iterator[None]:
    """While ops run that keep `value` for their gradients: let them keep `make`, which gives the same again.

    A quantized input is as large as the value that it is made of, which is kept in any case. Nothing is done where no
    gradient is asked for, and where something else decides what is kept: torch.compile, checkpointing, which would keep
    what `make` refers to, or saving on the CPU.
    """
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and value.requires_grad) or _is_kept_otherwise():
        yield
        return
    place, shape = value.data_ptr(), value.shape  # not value itself: hooks live as long as what they pack

    def pack(tensor: Tensor) -> Any:
        return make if tensor.data_ptr() == place and tensor.shape == shape else tensor

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        with torch.no_grad():
            made: Tensor = kept()
        return made

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _is_kept_otherwise() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
