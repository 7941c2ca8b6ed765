"""twn: the scale of a ternary tensor."""

import torch

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.histogram import Histogram
from subbyte.calibration.registry import register_algorithm
from subbyte.errors import ConfigError
from subbyte.numerics import stored_scale
from subbyte.spec import QuantParams, TensorSpec

_THRESHOLD = 0.7


@register_algorithm("twn", Histogram)
def twn(distribution: Distribution, spec: TensorSpec) -> QuantParams:
    """`alpha = mean of |x| where |x| > 0.7 mean |x|` (Ternary Weight Networks, Li et al., 2016, section 2.2).

    Values are then rounded to the nearest of {-alpha, 0, alpha}, as for every codebook: the boundary is alpha / 2.

    Raises:
        ConfigError: the type is not {-v, 0, +v}.
    """
    levels = sorted(spec.dtype.values or ())
    if len(levels) != 3 or levels[1] != 0 or levels[0] != -levels[2]:
        raise ConfigError(f"algorithm twn is the scale of a ternary type; {spec.dtype} takes minmax, mse, ...")
    values, counts = distribution.weighted()
    assert distribution.mean_abs is not None
    magnitude = values.abs()
    kept = counts * (magnitude > _THRESHOLD * distribution.mean_abs[:, None])
    alpha = (magnitude * kept).sum(1) / kept.sum(1).clamp(min=torch.finfo(torch.float32).tiny)
    return QuantParams(stored_scale(alpha / spec.dtype.max_magnitude, spec))
