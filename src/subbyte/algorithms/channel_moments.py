"""Mean and variance of each channel of a stream of tensors."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

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
    def of(cls, parts: Iterable[Tensor], name: str) -> "ChannelMoments":
        """Of a stream, part by part.

        Args:
            parts: [channels, values] each.
            name: of the op or module, for the message.

        Raises:
            CalibrationError: there is no value.
        """
        count, sums = 0, None
        for part in parts:
            values = part.double()
            own = torch.stack([values.sum(1), values.square().sum(1)])
            count, sums = count + values.shape[1], own if sums is None else sums + own
        if sums is None or not count:
            raise CalibrationError(f"{name!r} was reached by no calibration batch; add one that takes this path")
        mean, square = sums / count
        return cls(mean, (square - mean.square()).clamp(min=0) * (count / max(count - 1, 1)))
