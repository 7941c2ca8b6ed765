"""clipped: straight through inside the range."""

from torch import Tensor

from subbyte.numerics import fake_quantize
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.gradient import Gradient
from subbyte.training.registry import register_gradient


@register_gradient("clipped")
class Clipped(Gradient):
    """`dx = dy` where x was not clipped, else 0 (Hubara et al., 2016, section 1.3).

    As in `torch.fake_quantize_per_tensor_affine` what is rounded to the last code is not clipped: up to half a step
    beyond it the gradient passes, so that the largest weight learns on whose magnitude made the range.
    """

    def fake_quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Tensor:
        return fake_quantize(x, params, spec)
