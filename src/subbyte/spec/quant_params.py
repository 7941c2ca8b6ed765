"""Scale and zero point, as data."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class QuantParams:
    """What turns codes into values: `(code - zero_point) * scale`, or `table[code] * scale`.

    Args:
        scale: fp32 (or the spec's scale format). 0-dim for `per_tensor`; else of the tensor's rank with
            size 1 on every axis but: the channel axis (`per_channel`); all but the last (`per_token`);
            every axis, the group axis counting groups (`per_group`).
        zero_point: int32, of the scale's shape, in the domain of codes; None for a codebook.
    """

    scale: Tensor
    zero_point: Tensor | None = None

    def to(self, device: torch.device | str) -> "QuantParams":
        zero_point = None if self.zero_point is None else self.zero_point.to(device)
        return QuantParams(self.scale.to(device), zero_point)
