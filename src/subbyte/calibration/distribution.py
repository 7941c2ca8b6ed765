"""What calibration knows of the values that share a scale."""

from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.errors import CalibrationError


@dataclass(frozen=True)
class Distribution:
    """Values and how often they occur, for each block that has a scale of its own.

    Args:
        minimum, maximum: [blocks], fp32; exact, or moving averages.
        mean_abs: [blocks], fp32: the mean of |value|; None where it was not collected.
        values: [blocks, n], fp32: the elements themselves, or centres of histogram bins; None where only
            the range was collected.
        counts: like `values`: how often each occurs; None means once each.
    """

    minimum: Tensor
    maximum: Tensor
    mean_abs: Tensor | None = None
    values: Tensor | None = None
    counts: Tensor | None = None

    @classmethod
    def of(cls, values: Tensor, counts: Tensor | None = None) -> "Distribution":
        """The exact distribution of blocks of elements; an empty block counts as zeros."""
        if values.numel() == 0:
            zeros = values.new_zeros(values.shape[0])
            return cls(zeros, zeros, zeros, values.new_zeros(values.shape[0], 1))
        total = float(values.shape[1]) if counts is None else counts.sum(1)
        # Padding of a short group is zero: it widens a range only to hold 0, which every grid holds.
        mean_abs = torch.linalg.vector_norm(values, ord=1, dim=1) / total
        minimum, maximum = torch.aminmax(values, dim=1)
        return cls(minimum, maximum, mean_abs, values, counts)

    def weighted(self) -> tuple[Tensor, Tensor]:
        """Values and counts, both [blocks, n].

        Raises:
            CalibrationError: only the range was collected (an algorithm was registered with the wrong statistics).
        """
        if self.values is None:
            raise CalibrationError(
                "it needs the values, and only their range was kept; register it with statistics=Histogram"
            )
        return self.values, torch.ones_like(self.values) if self.counts is None else self.counts
