"""lsq: where learned step size quantization begins."""

from math import sqrt

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.registry import register_algorithm
from subbyte.calibration.statistics import MeanAbs
from subbyte.errors import ConfigError
from subbyte.numerics import scheme_of, stored_scale
from subbyte.spec import QuantParams, TensorSpec


@register_algorithm("lsq", MeanAbs)
def lsq(distribution: Distribution, spec: TensorSpec) -> QuantParams:
    """`scale = 2 mean |x| / sqrt(max(|qmin|, qmax))` (Esser et al., 2020, section 2.1); the zero point of minmax.

    Raises:
        ConfigError: the type is a table of values.
    """
    if spec.dtype.kind != "integer":
        raise ConfigError(f"algorithm lsq is for integers; {spec.dtype} takes minmax, mse, ...")
    assert distribution.mean_abs is not None
    found = scheme_of(spec).from_range(distribution.minimum, distribution.maximum, spec)
    scale = 2 * distribution.mean_abs / sqrt(max(abs(spec.qmin), abs(spec.qmax)))
    return QuantParams(stored_scale(scale, spec), found.zero_point)
