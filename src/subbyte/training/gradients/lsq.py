"""lsq: learned step size."""

from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from subbyte.numerics import Learned, is_built_in_affine, scheme_of
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient, unlearnable
from subbyte.training.registry import register_gradient


@register_gradient("lsq")
class Lsq(Gradient):
    """The scale is learned with the weights (Esser et al., 2020, equations 2 to 5).

    With v = x / scale and q the grid value it was snapped to:

        dx = dy where v lies inside the range, else 0
        dscale = g * sum dy * (q - v where inside, else q),  g = 1 / sqrt(n * Q)

    n is how many values of one sample share the scale, Q the largest |q|.
    """

    learns: ClassVar[tuple[str, ...]] = ("scale",)

    def obstacle(self, spec: TensorSpec) -> str:
        return unlearnable(spec)

    def scale_factor(self, spec: TensorSpec, values: float) -> float:
        return 1.0 / sqrt(max(values, 1.0) * largest_step(spec))

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        inside = at.inside
        grid = at.grid
        return Slopes(gradient * inside, gradient * torch.where(inside, grid - at.steps, grid))

    def learned(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Learned | None:
        if not is_built_in_affine(scheme_of(spec)) or params.zero_point is None:
            return None
        return Learned(x, params.scale, params.zero_point, spec, self.scale_factor(spec, values))


def largest_step(spec: TensorSpec) -> float:
    """max(|qmin|, qmax) of an integer type, max|value| of a table."""
    return spec.dtype.max_magnitude if spec.dtype.kind == "codebook" else float(max(abs(spec.qmin), abs(spec.qmax)))
