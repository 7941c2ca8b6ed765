"""dorefa: fixed ranges, and weights that tanh brings into theirs."""

from typing import ClassVar

import torch
from torch import Tensor

from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient
from subbyte.training.registry import register_gradient


@register_gradient("dorefa")
class DoReFa(Gradient):
    """Nothing is learned but the weights (Zhou et al., 2016, section 2.3).

    A weight is quantized as `tanh(w) / max |tanh(w)|`, an input as it is; the largest grid value stands for 1. Inside
    the range the gradient passes straight through, outside there is none. The grid is the data type's, which holds 0;
    the paper's, of 2^k - 1 equal steps from -1 to 1, does not. A weight of one bit is `mean |w| sign(w)` in the paper:
    for bint1 that is `straight_through`.
    """

    follows_weight: ClassVar[bool] = False

    def obstacle(self, spec: TensorSpec) -> str:
        if spec.scheme != "sym":
            return "its range is fixed, so that there is no zero point to find; use scheme sym"
        return "the type has no value above 0" if spec.dtype.kind == "integer" and spec.qmax <= 0 else ""

    def start(self, found: QuantParams, spec: TensorSpec) -> QuantParams:
        if found.zero_point is None:
            return QuantParams(torch.full_like(found.scale, 1 / spec.dtype.max_magnitude))
        return QuantParams(torch.ones_like(found.scale) / (spec.qmax - found.zero_point), found.zero_point)

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        return Slopes(gradient * at.inside)

    def reparametrized(self, weight: Tensor) -> Tensor:
        bounded = weight.tanh()
        return bounded / bounded.abs().amax().clamp(min=torch.finfo(bounded.dtype).tiny)
