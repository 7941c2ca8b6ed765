"""straight_through: as if nothing had been rounded or clipped."""

from torch import Tensor

from subbyte.spec import TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient
from subbyte.training.registry import register_gradient


@register_gradient("straight_through")
class StraightThrough(Gradient):
    """`dx = dy`, inside the range and outside (Bengio et al., 2013, section 4)."""

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        return Slopes(gradient)
