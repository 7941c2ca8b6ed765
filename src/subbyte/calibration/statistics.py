"""What is collected from a stream of tensors. Memory does not grow with the stream."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from subbyte.calibration.distribution import Distribution
from subbyte.errors import CalibrationError
from subbyte.numerics import to_blocks
from subbyte.spec import TensorSpec


class Statistics(ABC):
    """Collects from one tensor after the other; the base keeps the range of each block.

    Attributes:
        includes: other statistics in whose place these can stand, as they keep all that those do; not inherited.
    """

    includes: ClassVar[tuple[type["Statistics"], ...]] = ()

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
    """Exponential moving averages of each tensor's smallest and largest value: m += 0.01 (new - m).

    A tensor is what one forward gives, so that ranges depend on the batches, as they are after large ones were split.
    """

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
