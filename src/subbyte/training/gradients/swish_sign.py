"""swish_sign: as if sign were made of swish."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from subbyte.training.gradients.sign import SignGradient
from subbyte.training.registry import register_gradient


@register_gradient("swish_sign")
class SwishSign(SignGradient):
    """`F(x) = 2 sigmoid(b x) (1 + b x (1 - sigmoid(b x))) - 1` (BNN+, Darabi et al., 2018, equation 2).

    `F'(x) = b (2 - b x tanh(b x / 2)) / (1 + cosh(b x))`: beyond |x| = 2.4 / b it is below 0, and draws values back.

    Args:
        beta: b, how steep.
    """

    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0

    def slope(self, x: Tensor, progress: Tensor | None) -> Tensor:
        steep = (self.beta * x).clamp(-100, 100)  # where cosh is infinite, and the slope 0, already
        return self.beta * (2 - steep * (steep / 2).tanh()) / (1 + torch.cosh(steep))
