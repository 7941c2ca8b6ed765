"""mean_abs: the scale of a binary tensor."""

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.registry import register_algorithm
from subbyte.calibration.statistics import MeanAbs
from subbyte.errors import ConfigError
from subbyte.numerics import stored_scale
from subbyte.spec import QuantParams, TensorSpec


@register_algorithm("mean_abs", MeanAbs)
def mean_abs(distribution: Distribution, spec: TensorSpec) -> QuantParams:
    """`alpha = mean |x|`, which minimizes ||x - alpha sign(x)||^2 (XNOR-Net, Rastegari et al., 2016, eq. 6).

    Raises:
        ConfigError: the type is not {-v, +v}.
    """
    values = spec.dtype.values or ()
    if len(values) != 2 or values[0] != -values[1]:
        raise ConfigError(
            f"algorithm mean_abs is the scale of a sign, for types like bint1; {spec.dtype} takes minmax, mse, ..."
        )
    assert distribution.mean_abs is not None
    return QuantParams(stored_scale(distribution.mean_abs / spec.dtype.max_magnitude, spec))
