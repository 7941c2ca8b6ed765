"""ewgs: gradients scaled by how far a value was rounded."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from subbyte.spec import TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradients.lsq import Lsq
from subbyte.training.registry import register_gradient


@register_gradient("ewgs")
class Ewgs(Lsq):
    """Element-wise gradient scaling (Lee et al., 2021, equation 3), with a scale that is learned as in LSQ.

    With v = x / scale, q the grid value it was snapped to, and f = 1 + delta sign(dy) (v - q) / w, w the width of the
    grid, from its lowest value to its highest:

        dx = f dy where v lies inside the range, else 0
        dscale = g * sum dy * (q - f v where inside, else q),  g as in LSQ

    Args:
        delta: how much; 0 is LSQ.
    """

    delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-3

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        steps, grid = at.steps, at.grid
        rounded = (steps - grid) / _width(spec)
        inside = at.inside
        through = torch.where(inside, 1 + self.delta * gradient.sign() * rounded, 0.0)
        # Chosen, not multiplied by 0: steps may be infinite.
        return Slopes(gradient * through, gradient * torch.where(inside, grid - steps * through, grid))


def _width(spec: TensorSpec) -> float:
    """From the lowest grid value to the highest."""
    values = spec.dtype.values
    return spec.qmax - spec.qmin if values is None else max(values) - min(values)
