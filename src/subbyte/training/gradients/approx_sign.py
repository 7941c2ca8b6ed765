"""approx_sign: as if sign were a piecewise parabola."""

from torch import Tensor

from subbyte.training.gradients.sign import SignGradient
from subbyte.training.registry import register_gradient


@register_gradient("approx_sign")
class ApproxSign(SignGradient):
    """`F'(x) = 2 - 2 |x| where |x| < 1, else 0` (Bi-Real Net, Liu et al., 2018, equation 7)."""

    def slope(self, x: Tensor, progress: Tensor | None) -> Tensor:
        return (2 - 2 * x.abs()).clamp(min=0)
