"""Defining an operator of `torch.ops.subbyte`: its schema, its PyTorch implementation, and its shape alone."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from subbyte.errors import KernelError
from subbyte.kernels.library import library
from subbyte.kernels.once import differentiable_once

# Kept: an operator lives as long as the object that defined it.
_DEFINITIONS = torch.library.Library("subbyte", "FRAGMENT")


@cache
def is_native() -> bool:
    """Whether the operators have native kernels."""
    try:
        return library().handle is not None
    except KernelError:  # whoever calls an operator is told
        return False


def runs_native(x: torch.Tensor) -> bool:
    """Whether an operator on x is a native kernel, and so worth more than the PyTorch functions that it stands for.

    Not where gradients are asked for, which it has none of, nor under torch.compile, which fuses the functions itself.
    """
    return (
        not torch.compiler.is_compiling()
        and x.is_cpu
        and x.dtype is torch.float32
        and not (x.requires_grad and torch.is_grad_enabled())
        and is_native()
    )


def define(
    schema: str,
    implementation: Callable[..., Any],
    shape: Callable[..., Any],
    on_gpu: Callable[..., Any] | None = None,
) -> None:
    """Define an operator, or give the native one what runs where it has no kernel.

    Args:
        schema: as in `name(Tensor x, int n) -> Tensor`; the native library defines its operators with the same.
        implementation: in PyTorch functions, for every device.
        shape: from the arguments to an empty result of the right shape and dtype.
        on_gpu: what runs on CUDA tensors; None: the implementation.
    """
    name = schema.partition("(")[0]
    try:
        native = library().handle is not None
    except KernelError as error:  # not of the import: every use says what is wrong
        native, implementation, on_gpu = False, _refusing(error), None
    if not native:
        _DEFINITIONS.define(schema)
    _DEFINITIONS.impl(name, _named(name, implementation), "CompositeExplicitAutograd")
    if on_gpu is not None:
        _DEFINITIONS.impl(name, _named(name, on_gpu), "CUDA")
    torch.library.register_fake(f"subbyte::{name}", _on_one_device(name, shape), lib=_DEFINITIONS)


def _on_one_device(name: str, shape: Callable[..., Any]) -> Callable[..., Any]:
    """The shape where all tensors are on one device: a real one beside a `meta` one would get a result of nothing."""

    def checked(*args: Any) -> Any:
        devices = {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}
        if len(devices) > 1:
            raise KernelError(f"{name}: its tensors are on different devices: {', '.join(sorted(devices))}")
        return shape(*args)

    return checked


def define_differentiable(
    schema: str,
    implementation: Callable[..., Any],
    shape: Callable[..., Any],
    *,
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
) -> None:
    """Define an operator for training, made of others: gradients cost every call some microseconds, asked for or not.

    Args:
        schema, implementation, shape: as for `define`.
        setup_context: (ctx, inputs, output): keeps what `backward` needs.
        backward: from ctx and the gradients of the results to those of the arguments, which have none themselves.
    """
    name = schema.partition("(")[0]
    _DEFINITIONS.define(schema)
    _DEFINITIONS.impl(name, _named(name, implementation), "CompositeExplicitAutograd")
    torch.library.register_fake(f"subbyte::{name}", shape, lib=_DEFINITIONS)
    once = differentiable_once(backward)
    torch.library.register_autograd(f"subbyte::{name}", once, setup_context=setup_context, lib=_DEFINITIONS)


def _named(name: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """The implementation, of which what it refuses begins with the operator's name, as of the native ones."""

    def named(*args: Any, **kwargs: Any) -> Any:
        try:
            return implementation(*args, **kwargs)
        except RuntimeError as error:
            if type(error) not in (RuntimeError, KernelError):  # out of memory, not implemented, ...
                raise
            raise KernelError(f"{name}: {error}") from error

    return named


def _refusing(error: KernelError) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise error

    return refuse
