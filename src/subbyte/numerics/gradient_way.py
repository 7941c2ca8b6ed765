"""A value that is computed in one way, and whose gradient goes back by another."""

from typing import Any

import torch
from torch import Tensor


def wants_gradient(x: Tensor) -> bool:
    """Whether a gradient of x may be asked for."""
    return x.requires_grad and torch.is_grad_enabled()


def with_gradient_way(value: Tensor, way: Tensor) -> Tensor:
    """`value`, to the last bit, with the gradients of `way`.

    Args:
        value: without gradient; any dtype.
        way: of its shape, the same but for rounding.
    """
    result: Tensor = _GradientWay.apply(way, value)  # type: ignore[no-untyped-call]
    return result


class _GradientWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
