"""clipped_identity: as if sign were x, clipped at -1 and 1."""

from torch import Tensor

from subbyte.training.gradients.sign import SignGradient
from subbyte.training.registry import register_gradient


@register_gradient("clipped_identity")
class ClippedIdentity(SignGradient):
    """`F'(x) = 1 where |x| <= 1, else 0` (Hubara et al., 2016, equation 4)."""

    def slope(self, x: Tensor, progress: Tensor | None) -> Tensor:
        return (x.abs() <= 1).to(x.dtype)
