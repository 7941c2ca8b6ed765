"""minmax and moving_average_minmax: the range is what was seen."""

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.registry import register_algorithm
from subbyte.calibration.statistics import MinMax, MovingAverageMinMax
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec


@register_algorithm("moving_average_minmax", MovingAverageMinMax)
@register_algorithm("minmax", MinMax)
def minmax(distribution: Distribution, spec: TensorSpec) -> QuantParams:
    """Represent minimum..maximum; with moving averages of them, batches far out weigh less."""
    return scheme_of(spec).from_range(distribution.minimum, distribution.maximum, spec)
