"""ewgs: gradients scaled by how far a value was rounded."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradients.lsq import Lsq
from subbyte.training.registry import register_gradient


@register_gradient("ewgs")
class Ewgs(Lsq):
    """Element-wise gradient scaling (Lee et al., 2021, equation 3), with a scale that is learned as in LSQ.

    With v = x / scale, q the grid value it was snapped to, and f = 1 + delta sign(dy) (v - q) / (qmax - qmin):

        dx = f dy where v lies inside the range, else 0
        dscale = g * sum dy * (q - f v where inside, else q),  g as in LSQ

    Args:
        delta: how much; 0 is LSQ.
    """

    delta: Annotated[float, Field(ge=0)] = 1e-3

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        steps, grid = at.steps, at.grid
        rounded = (steps - grid) / (spec.qmax - spec.qmin)
        through = (1 + self.delta * gradient.sign() * rounded) * at.inside
        return Slopes(gradient * through, gradient * (grid - steps * through))

    def learned(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> None:
        return None  # the kernels have LSQ's gradient
