"""A relu whose gradient the quantizer behind it may have masked already, in a pass that it makes anyway."""

from typing import Any

import torch
from torch import Tensor

_MASKED = "subbyte_masked_for"


def rectify(x: Tensor) -> Tensor:
    """`relu(x)`, with relu's gradient, in x's shape and dtype."""
    y: Tensor = _Rectify.apply(x)  # type: ignore[no-untyped-call]
    return y


def is_rectified(x: Tensor) -> bool:
    """Whether x is what `rectify` gave, so that a gradient of x may be masked where x is not above 0."""
    return isinstance(x.grad_fn, _Rectify._backward_cls)


def note_masked(gradient: Tensor, x: Tensor) -> None:
    """Tell the `rectify` that gave x that this gradient of x is masked: if it comes alone, no pass is needed."""
    setattr(gradient, _MASKED, _key(gradient, x))


def _key(gradient: Tensor, x: Tensor) -> tuple[int, int]:
    # Another gradient may be added to it in place, which its version tells.
    return x.data_ptr(), gradient._version


class _Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        (gradient,) = gradients
        if getattr(gradient, _MASKED, None) == _key(gradient, y):
            return gradient
        masked: Tensor = torch.ops.aten.threshold_backward(gradient, y, 0)
        return masked
