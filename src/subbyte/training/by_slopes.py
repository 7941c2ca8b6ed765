"""The quantized value, with gradients that a function tells value by value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subbyte.kernels.quantize import sum_to
from subbyte.numerics import Affine, scheme_of
from subbyte.spec import QuantParams, TensorSpec


@dataclass(frozen=True)
class Point:
    """Where the gradients of a tensor are asked for, value by value. A property is computed where it is read.

    Args:
        x: what was quantized (fp32).
        params: scale and zero point, in whole codes.
        spec: how.
        progress: of training, from 0 to 1, [] in fp32; None unless the gradient is scheduled.
    """

    x: Tensor
    params: QuantParams
    spec: TensorSpec
    progress: Tensor | None = None

    @property
    def scale(self) -> Tensor:
        """Of each value, broadcastable against x."""
        return scheme_of(self.spec).scale(self.params, self.x.shape, self.spec)

    @property
    def grid(self) -> Tensor:
        """What x / scale was snapped to: whole steps, or values of a table."""
        return scheme_of(self.spec).snap(self.x, self.params, self.spec)

    @property
    def inside(self) -> Tensor:
        """Whether a value lies inside of the range, as `Scheme.is_inside` tells."""
        return scheme_of(self.spec).is_inside(self.x, self.params, self.spec)

    @property
    def clipped(self) -> Tensor:
        """Whether a value lies on an end of the range or beyond; of a table, whether it is not inside."""
        scheme = scheme_of(self.spec)
        if not isinstance(scheme, Affine):
            return ~self.inside
        steps, (low, high) = self.steps, scheme.ends(self.params, self.x.shape, self.spec)
        return (steps <= low) | (steps >= high)

    @property
    def steps(self) -> Tensor:
        """x in steps of the scale."""
        return self.x / self.scale


@dataclass(frozen=True)
class Slopes:
    """Gradients for each value; those of scale and zero point are then summed.

    Args:
        x: of the value itself.
        scale: of its scale; None where it has none.
        zero_point: of its zero point; None where it has none.
    """

    x: Tensor
    scale: Tensor | None = None
    zero_point: Tensor | None = None


Back = Callable[[Tensor, Point, TensorSpec], Slopes]


def fake_quantize_by_slopes(
    x: Tensor,
    params: QuantParams,
    spec: TensorSpec,
    back: Back,
    factor: float = 1.0,
    progress: Tensor | None = None,
) -> Tensor:
    """`dequantize(quantize(x))` in x's dtype, of any scheme.

    Args:
        x: fp32, bf16 or fp16.
        params: scale and zero point; one of fp32 is rounded to the nearest code first.
        spec: how.
        back: from the gradient of the result (fp32), and where it is asked for, to those of x, scale and zero point.
        factor: of the scale's gradient.
        progress: of training, see Point.
    """
    y: Tensor = _BySlopes.apply(x.float(), params.scale, params.zero_point, progress, spec, back, factor)  # type: ignore[no-untyped-call]
    return y.to(x.dtype)


class _BySlopes(torch.autograd.Function):
    """The quantized value, and the way back that a function tells; x alone is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor | None,
        progress: Tensor | None,
        spec: TensorSpec,
        back: Back,
        factor: float,
    ) -> Tensor:
        scheme, params = scheme_of(spec), _params(scale, zero_point, spec)
        ctx.save_for_backward(x, scale, zero_point, progress)
        ctx.spec, ctx.back, ctx.factor = spec, back, factor
        return scheme.snap(x, params, spec) * scheme.scale(params, x.shape, spec)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, zero_point, progress = ctx.saved_tensors
        spec: TensorSpec = ctx.spec
        slopes = ctx.back(gradients[0], Point(x, _params(scale, zero_point, spec), spec, progress), spec)
        size = spec.granularity.group_size
        of_scale = None if slopes.scale is None else sum_to(slopes.scale * ctx.factor, scale, size)
        of_zero = slopes.zero_point
        of_zero = None if of_zero is None or zero_point is None else sum_to(of_zero, zero_point, size)
        return slopes.x, of_scale, of_zero, None, None, None, None


def _params(scale: Tensor, zero_point: Tensor | None, spec: TensorSpec) -> QuantParams:
    if zero_point is None or not zero_point.is_floating_point():
        return QuantParams(scale, zero_point)
    return QuantParams(scale, zero_point.round().clamp(spec.qmin, spec.qmax).to(torch.int32))
