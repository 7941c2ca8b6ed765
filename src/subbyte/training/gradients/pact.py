"""pact: a clipping value that is learned."""

from typing import ClassVar

from torch import Tensor

from subbyte.spec import TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient, unlearnable
from subbyte.training.registry import register_gradient


@register_gradient("pact")
class Pact(Gradient):
    """The clipping value alpha is learned by what it clips (Choi et al., 2018, equations 1 to 3).

    The paper's `y = clip(x, 0, alpha)` and `dalpha = sum of dy where x >= alpha`, here for both ends of any range, in
    terms of the scale, which is alpha / Q:

        dx = dy where x lies inside the range, else 0
        dscale = sum of dy * q where x lies on an end q of the grid, or beyond

    The paper's penalty on alpha is weight decay: give the scales of `model.named_parameters()` a group with one.
    """

    learns: ClassVar[tuple[str, ...]] = ("scale",)

    def obstacle(self, spec: TensorSpec) -> str:
        return unlearnable(spec)

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        return Slopes(gradient * at.inside, gradient * at.grid * at.clipped)
