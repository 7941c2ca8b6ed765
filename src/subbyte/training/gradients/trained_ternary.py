"""trained_ternary: a ternary weight whose scale and threshold are learned."""

from typing import ClassVar

import torch
from torch import Tensor

from subbyte.spec import TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient, unlearnable
from subbyte.training.registry import register_gradient


@register_gradient("trained_ternary")
class TrainedTernary(Gradient):
    """Trained ternary quantization (Zhu et al., 2017, equations 7 and 8), with one scale for both signs.

    With q in {-1, 0, +1} the grid value that x was snapped to:

        dx = scale * dy where q is not 0, else dy
        dscale = sum of dy * q

    Values below half the scale become 0, so that the threshold is learned with it.
    """

    learns: ClassVar[tuple[str, ...]] = ("scale",)

    def obstacle(self, spec: TensorSpec) -> str:
        values = sorted(spec.dtype.values or ())
        if len(values) != 3 or values[1] != 0 or values[0] != -values[2]:
            return "it is made for types of three values {-v, 0, +v}, as ternary"
        return unlearnable(spec)

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        grid = at.grid
        return Slopes(gradient * torch.where(grid != 0, at.scale, 1.0), gradient * grid)
