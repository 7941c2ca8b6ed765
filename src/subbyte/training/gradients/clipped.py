"""clipped: straight through inside the range."""

from torch import Tensor

from subbyte.numerics import fake_quantize
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.gradient import Gradient
from subbyte.training.registry import register_gradient


@register_gradient("clipped")
class Clipped(Gradient):
    """`dx = dy` where x lies inside the range, 0 where it was clipped (Hubara et al., 2016, section 1.3)."""

    def fake_quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Tensor:
        return fake_quantize(x, params, spec)
