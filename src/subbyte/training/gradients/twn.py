"""twn: a ternary weight with the threshold of Ternary Weight Networks."""

from typing import Any

import torch
from torch import Tensor

from subbyte.spec import TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient
from subbyte.training.registry import register_gradient

_THRESHOLD = 0.7


@register_gradient("twn")
class Twn(Gradient):
    """Ternary weight networks (Li et al., 2016, equations 4 and 6), for each output channel:

        threshold = 0.7 mean |w|,  alpha = mean of |w| where |w| > threshold
        value = alpha sign(w) where |w| > threshold, else 0,  dw = dy

    Both are found anew whenever the weight changes. A table alone would put the threshold at alpha / 2.
    """

    def obstacle(self, spec: TensorSpec) -> str:
        values = sorted(spec.dtype.values or ())
        if len(values) != 3 or values[1] != 0 or values[0] != -values[2]:
            return "it is made for types of three values {-v, 0, +v}, as ternary"
        if spec.granularity.kind != "per_channel" or spec.axis != 0 or spec.algorithm != "twn":
            return "it is made for weights with one scale for each row, by the algorithm twn"
        return ""

    def reparametrized(self, weight: Tensor) -> Tensor:
        return _Ternary.apply(weight)  # type: ignore[no-any-return, no-untyped-call]

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        return Slopes(gradient)


class _Ternary(torch.autograd.Function):
    """`alpha sign(w)` above the threshold, 0 below, of each row; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        magnitude = weight.abs()
        axes = tuple(range(1, weight.ndim))
        is_kept = magnitude > _THRESHOLD * magnitude.mean(axes, keepdim=True)
        total = (magnitude * is_kept).sum(axes, keepdim=True)
        return is_kept * weight.sign() * (total / is_kept.sum(axes, keepdim=True).clamp(min=1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
