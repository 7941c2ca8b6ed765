"""Defining an operator of `torch.ops.subbyte`: its schema, its PyTorch implementation, and its shape alone."""

from collections.abc import Callable
from typing import Any

import torch

from subbyte.errors import KernelError
from subbyte.kernels.library import library

# Kept: an operator lives as long as the object that defined it.
_DEFINITIONS = torch.library.Library("subbyte", "FRAGMENT")


def define(schema: str, implementation: Callable[..., Any], shape: Callable[..., Any]) -> None:
    """Define an operator, or give the native one what runs where it has no kernel.

    Args:
        schema: as in `name(Tensor x, int n) -> Tensor`; the native library defines its operators with the same.
        implementation: in PyTorch functions, for every device.
        shape: from the arguments to an empty result of the right shape and dtype.
    """
    name = schema.partition("(")[0]
    try:
        native = library().handle is not None
    except KernelError as error:  # not of the import: every use says what is wrong
        native, implementation = False, _refusing(error)
    if not native:
        _DEFINITIONS.define(schema)
    _DEFINITIONS.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"subbyte::{name}", shape, lib=_DEFINITIONS)


def _refusing(error: KernelError) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise error

    return refuse
