"""Mean and variance of each channel of a stream of tensors."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.algorithms.chunked_sum import ChunkedSum, Place
from subbyte.errors import CalibrationError


@dataclass(frozen=True)
class ChannelMoments:
    """Over all values of a channel.

    Args:
        mean: [channels], float64.
        variance: [channels], float64, with n - 1 for n values, as BatchNorm keeps it.
    """

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, parts: Iterable[tuple[Place, Tensor]], name: str) -> "ChannelMoments":
        """Of a stream, part by part; how it is cut into parts makes no difference.

        Args:
            parts: [channels, values] each, with the place in its forward that it comes from.
            name: of the op or module, for the message.

        Raises:
            CalibrationError: there is no value.
        """
        powers = ChunkedSum(sums_of_powers)
        for place, values in parts:
            powers.add(values, place)
        count, sums = powers.count, powers.total()
        if sums is None:
            raise CalibrationError(f"{name!r} was reached by no calibration batch; add one that takes this path")
        mean, square = sums / count
        return cls(mean, (square - mean.square()).clamp(min=0) * (count / max(count - 1, 1)))


def sums_of_powers(values: Tensor) -> Tensor:
    """Return the sums of values and of their squares over the last axis, fp64: [2, ...]."""
    exact = values.double()
    return torch.stack([exact.sum(-1), exact.square().sum(-1)])
