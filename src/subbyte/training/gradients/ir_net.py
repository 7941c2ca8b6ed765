"""ir_net: as if sign were a tanh that sharpens while training goes on."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from subbyte.training.gradients.sign import SignGradient
from subbyte.training.registry import register_gradient


@register_gradient("ir_net")
class IrNet(SignGradient):
    """`F(x) = k tanh(t x)`, `t = first * (last / first)^progress`, `k = max(1 / t, 1)` (Qin et al., 2020, section 3.3).

    `F'(x) = k t (1 - tanh(t x)^2)`: nearly 1 everywhere at first, so that all values learn, and in the end that of a
    sign. Progress is from 0 to 1; `subbyte.training.set_progress` writes it, once in each epoch.

    Args:
        first, last: what t begins and ends as.
    """

    scheduled: ClassVar[bool] = True

    first: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    last: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0

    def slope(self, x: Tensor, progress: Tensor | None) -> Tensor:
        assert progress is not None
        t = self.first * (self.last / self.first) ** progress
        return t.reciprocal().clamp(min=1) * t * (1 - (t * x).tanh().square())
