"""percentile: clip the outermost values."""

import torch

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.histogram import Histogram
from subbyte.calibration.registry import register_algorithm
from subbyte.errors import ConfigError
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec


@register_algorithm("percentile", Histogram)
def percentile(distribution: Distribution, spec: TensorSpec, percent: float = 99.99) -> QuantParams:
    """The range from the (100 - percent)th to the percent-th percentile.

    Integer Quantization for Deep Learning Inference (Wu et al., 2020), section 3.1.

    Raises:
        ConfigError: percent is not in (50, 100].
    """
    if not 50.0 < percent <= 100.0:
        raise ConfigError(f"algorithm percentile({percent}): the percentile must be above 50 and at most 100")
    values, counts = distribution.weighted()
    ordered, order = values.sort(dim=1)
    cumulative = counts.gather(1, order).double().cumsum(1)
    total = cumulative[:, -1:]

    def at(rank: torch.Tensor) -> torch.Tensor:
        index = torch.searchsorted(cumulative, rank, right=True)
        return ordered.gather(1, index.clamp(max=ordered.shape[1] - 1))[:, 0]

    # Ranks are rounded outwards: with few values nothing is clipped.
    low, high = (100.0 - percent) / 100.0 * (total - 1.0), percent / 100.0 * (total - 1.0)
    return scheme_of(spec).from_range(at(low.floor()), at(high.ceil()), spec)
