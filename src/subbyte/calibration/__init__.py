"""Calibration: statistics of what was seen, and the algorithms that turn them into scales."""

from subbyte.calibration import kl, lsq, mean_abs, minmax, mse, percentile, twn  # noqa: F401  (they register themselves)
from subbyte.calibration.calibrate import (
    calibrate_statistics,
    calibrate_tensor,
    params_of,
    params_of_tensor,
    quantize_tensor,
)
from subbyte.calibration.distribution import Distribution
from subbyte.calibration.histogram import Histogram
from subbyte.calibration.registry import (
    Algorithm,
    algorithm_of,
    parse_algorithm,
    register_algorithm,
    registered_algorithms,
)
from subbyte.calibration.statistics import MeanAbs, MinMax, MovingAverageMinMax, Statistics

__all__ = [
    "Algorithm",
    "Distribution",
    "Histogram",
    "MeanAbs",
    "MinMax",
    "MovingAverageMinMax",
    "Statistics",
    "algorithm_of",
    "calibrate_statistics",
    "calibrate_tensor",
    "params_of",
    "params_of_tensor",
    "parse_algorithm",
    "quantize_tensor",
    "register_algorithm",
    "registered_algorithms",
]
