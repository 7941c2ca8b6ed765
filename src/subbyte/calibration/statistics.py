"""What is collected from a stream of tensors. Memory does not grow with the stream."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from subbyte.calibration.distribution import Distribution
from subbyte.errors import CalibrationError
from subbyte.numerics import to_blocks
from subbyte.spec import TensorSpec


class Statistics(ABC):
    """Collects from one tensor after the other; the base keeps the range of each block."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.minimum: Tensor | None = None
        self.maximum: Tensor | None = None

    def observe(self, x: Tensor) -> None:
        """Take in one tensor; an empty one changes nothing.

        Raises:
            CalibrationError: it holds NaN or infinity, or has another number of channels than before.
        """
        if x.numel() == 0:
            return
        blocks, counts = to_blocks(x.detach().float(), self.spec)
        minimum, maximum = torch.aminmax(blocks, dim=1)
        if not bool(torch.isfinite(minimum).all() & torch.isfinite(maximum).all()):
            raise CalibrationError("the calibration data gives NaN or infinity here")
        if self.minimum is not None and self.minimum.shape != minimum.shape:
            raise CalibrationError(
                f"{self.spec.granularity} saw {len(self.minimum)} channels before and {len(minimum)} now"
            )
        self.merge_range(minimum, maximum)
        self.collect(blocks, counts)

    def merge_range(self, minimum: Tensor, maximum: Tensor) -> None:
        """Join the range of one tensor to that of all before."""
        if self.minimum is not None and self.maximum is not None:
            minimum, maximum = torch.minimum(self.minimum, minimum), torch.maximum(self.maximum, maximum)
        self.minimum, self.maximum = minimum, maximum

    @abstractmethod
    def collect(self, blocks: Tensor, counts: Tensor | None) -> None:
        """Take in more than the range; called after `merge_range`.

        Args:
            blocks: [blocks, elements].
            counts: 1 for an element, 0 for the padding of a short last group; None where there is none.
        """

    def distribution(self) -> Distribution:
        """What has been collected.

        Raises:
            CalibrationError: nothing has been.
        """
        if self.minimum is None or self.maximum is None:
            raise CalibrationError("no calibration data reached it")
        return Distribution(self.minimum, self.maximum)


class MinMax(Statistics):
    """The smallest and largest value of each block."""

    def collect(self, blocks: Tensor, counts: Tensor | None) -> None:
        """Nothing beyond the range."""


class MovingAverageMinMax(MinMax):
    """Exponential moving averages of each tensor's smallest and largest value: m += 0.01 (new - m)."""

    momentum = 0.01

    def merge_range(self, minimum: Tensor, maximum: Tensor) -> None:
        if self.minimum is not None and self.maximum is not None:
            minimum = self.minimum + self.momentum * (minimum - self.minimum)
            maximum = self.maximum + self.momentum * (maximum - self.maximum)
        self.minimum, self.maximum = minimum, maximum


class MeanAbs(MinMax):
    """The range, and the mean of |x| over all elements of a block."""

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self.total: Tensor | float = 0.0
        self.count: Tensor | int = 0

    def collect(self, blocks: Tensor, counts: Tensor | None) -> None:
        self.total = self.total + blocks.abs().sum(1, dtype=torch.float64)
        self.count = self.count + (blocks.shape[1] if counts is None else counts.sum(1))

    def distribution(self) -> Distribution:
        extent = super().distribution()
        return Distribution(extent.minimum, extent.maximum, torch.as_tensor(self.total / self.count).float())


class Histogram(Statistics):
    """The range, and a histogram of one block whose bins widen as the range does.

    Bin k covers [k w, (k + 1) w) with w a power of two. When the range outgrows the bins, w doubles and
    neighbours merge, so counts are exact and do not depend on the order of the stream.
    """

    bins = 4096

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self.exponent: int | None = None
        self.first = 0
        self.counts = torch.zeros(0, dtype=torch.int64)

    def collect(self, blocks: Tensor, counts: Tensor | None) -> None:
        if blocks.shape[0] != 1:
            raise CalibrationError(
                f"a histogram is kept for a whole tensor, not {self.spec.granularity}; "
                "use the algorithm minmax for activations with more than one scale"
            )
        self._widen()
        values = blocks[0] if counts is None else blocks[0, counts[0] > 0]
        index = torch.floor(values / 2.0 ** (self.exponent or 0)).long() - self.first
        # A negative value may underflow to 0, which lies in the bin above.
        index.clamp_(max=len(self.counts) - 1)
        self.counts = self.counts.to(index.device) + torch.bincount(index, minlength=len(self.counts))

    def _widen(self) -> None:
        """Make the bins cover the range."""
        assert self.minimum is not None
        assert self.maximum is not None
        low, high = float(self.minimum), float(self.maximum)
        span = max(high - low, abs(low) * 1e-6, abs(high) * 1e-6, 1e-30)
        needed = math.ceil(math.log2(span / (self.bins // 2)))
        exponent = needed if self.exponent is None else max(needed, self.exponent)
        first, last = math.floor(low / 2.0**exponent), math.floor(high / 2.0**exponent)
        counts = torch.zeros(last - first + 1, dtype=torch.int64, device=self.minimum.device)
        if self.exponent is not None and len(self.counts):
            old = torch.arange(self.first, self.first + len(self.counts), device=counts.device)
            counts.index_add_(0, (old >> (exponent - self.exponent)) - first, self.counts.to(counts.device))
        self.exponent, self.first, self.counts = exponent, first, counts

    def distribution(self) -> Distribution:
        extent = super().distribution()
        width = 2.0 ** (self.exponent or 0)
        bins = torch.arange(len(self.counts), dtype=torch.float32, device=self.counts.device)
        centres = (bins + (self.first + 0.5)) * width
        centres = centres.clamp(extent.minimum, extent.maximum)
        if self.first <= 0 < self.first + len(self.counts) and extent.minimum == 0:
            centres[-self.first] = 0.0  # after a ReLU the lowest bin is mostly exact zeros
        counts = self.counts.float()
        mean_abs = (centres.abs() * counts).sum() / counts.sum()
        return Distribution(extent.minimum, extent.maximum, mean_abs[None], centres[None], counts[None])
