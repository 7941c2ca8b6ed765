"""The distribution of a stream of values: how many fell in each of a fixed set of bins."""

import torch
from torch import Tensor

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.statistics import MinMax, Statistics
from subbyte.errors import CalibrationError
from subbyte.spec import TensorSpec

_MANTISSA_BITS = 11
_DROPPED = 23 - _MANTISSA_BITS  # of fp32's mantissa
_KEYS = 255 << _MANTISSA_BITS  # of the finite magnitudes
_MAGNITUDE = 0x7FFFFFFF
_WAITING = 1 << 17  # values that are counted together: to count is cheap for each value, but not to begin


class Histogram(Statistics):
    """The range, and a histogram of one block in bins whose width is relative to their values.

    A bin holds the fp32 values that agree in sign, exponent and the first eleven bits of the mantissa, so a value
    and the centre that stands for it differ by at most 2^-12 of the value (0.025 %), however far outliers lie; below
    2^-126 by at most 2^-138, and below 2^-137 all is zero. Logarithmic bins as in DDSketch (Masson et al., 2019).

    The bins are the same for all data: counts are exact and depend neither on the order of the stream nor on its
    batches. Only bins that hold something are kept: 12 bytes each, at most 1,044,479 of them; those of a million
    normal values take half a megabyte.
    """

    includes = (MinMax,)

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._bins = torch.zeros(0, dtype=torch.int32)
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._waiting: list[Tensor] = []
        self._waiting_count = 0

    def collect(self, blocks: Tensor, counts: Tensor | None) -> None:
        if blocks.shape[0] != 1:
            raise CalibrationError(
                f"a histogram is kept for a whole tensor, not {self.spec.granularity}; "
                "use the algorithm minmax for activations with more than one scale"
            )
        bins = _bins_of(blocks[0] if counts is None else blocks[0, counts[0] > 0])
        self._waiting.append(bins)
        self._waiting_count += len(bins)
        if self._waiting_count >= _WAITING:
            self._count()

    def _count(self) -> None:
        """Add the values that wait to the counts."""
        if not self._waiting:
            return
        found = torch.cat(self._waiting)
        self._waiting, self._waiting_count = [], 0
        total = torch.bincount(found + _KEYS, minlength=2 * _KEYS)
        total[self._bins.to(total.device).long() + _KEYS] += self._counts.to(total.device)
        filled = total.nonzero()[:, 0]
        self._bins, self._counts = (filled - _KEYS).int(), total[filled]

    def distribution(self) -> Distribution:
        """Centres of the bins in rising order, inside the range, and their counts."""
        extent = super().distribution()
        self._count()
        centres = _centres(self._bins).clamp(extent.minimum, extent.maximum)
        counts = self._counts.float()
        mean_abs = (centres.abs() * counts).sum() / counts.sum()
        return Distribution(extent.minimum, extent.maximum, mean_abs[None], centres[None], counts[None])


def _bins_of(values: Tensor) -> Tensor:
    """The bin of each value: 0 of zero, counted from there in both directions."""
    # As whole numbers, the bits of positive floats rise with their values.
    magnitude = (values.contiguous().view(torch.int32) & _MAGNITUDE) >> _DROPPED
    return torch.where(values < 0, -magnitude, magnitude)


def _centres(bins: Tensor) -> Tensor:
    lower = (bins.abs() << _DROPPED).view(torch.float32)
    upper = ((bins.abs() << _DROPPED) + (1 << _DROPPED) - 1).view(torch.float32)
    centre = lower + (upper - lower) / 2  # the sum of both may be infinite
    return torch.where(bins == 0, 0.0, torch.where(bins < 0, -centre, centre))
