"""Kernels of the same operators for tensors on a GPU, in Triton.

Triton is imported at the first use of one; where there is none, PyTorch implementations serve.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from subbyte.kernels.isa import used_isa


@cache
def has_triton() -> bool:
    """Whether Triton can be imported."""
    try:
        import_module("triton")
    except ImportError:
        return False
    return True


def used_on(device: torch.device) -> str:
    """What runs an operator with a kernel of this package on a device: `triton`, `torch` or an instruction set."""
    if device.type != "cuda":
        return used_isa()
    return "triton" if has_triton() else "torch"


def by_triton(module: str, name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """An implementation of an operator that imports its kernel when it is first called.

    Args:
        module: of this package.
        name: of the function in it that runs the kernel.
        otherwise: takes the same arguments, and serves without Triton.
    """

    @cache
    def chosen() -> Callable[..., Any]:
        if not has_triton():
            return otherwise
        function: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), name)
        return function

    return lambda *arguments: chosen()(*arguments)
