"""mse: the clipping range of least squared error."""

from torch import Tensor

from subbyte.calibration.clip_search import search
from subbyte.calibration.distribution import Distribution
from subbyte.calibration.histogram import Histogram
from subbyte.calibration.registry import register_algorithm
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec


@register_algorithm("mse", Histogram)
def mse(distribution: Distribution, spec: TensorSpec) -> QuantParams:
    """Minimize `sum count (x - dequantize(quantize(x)))^2` over the observed range times 1.00, 0.98, ... 0.02.

    Low-bit quantization needs clipping: Post training 4-bit quantization (Banner et al., 2019), section 3;
    searched rather than derived, so that it holds for any data type.
    """
    values, counts = distribution.weighted()
    scheme = scheme_of(spec)

    def loss(params: QuantParams, minimum: Tensor, maximum: Tensor) -> Tensor:
        candidates = len(minimum) // max(len(values), 1)
        x = values.repeat(candidates, 1)
        error = (x - scheme.snap(x, params, spec) * scheme.grid_scale(params)).square_()
        return (error * counts.repeat(candidates, 1)).sum(1)

    return search(distribution, spec, loss)
