"""Rounding that is learned: each weight moves between the two grid values around it."""

import math

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.numerics import neighbours

_STRETCH_LOW, _STRETCH_HIGH = -0.1, 1.1  # so that 0 and 1 are reached, and left again


class SoftRounding:
    """`below + h(v) (above - below)` with h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1), begun at the weight itself.

    AdaRound (Nagel et al., 2020), equations 22 to 24; between the values of a codebook as between whole numbers.

    Args:
        op: whose weight it is, with scale and zero point as they stay.
    """

    def __init__(self, op: WeightedOp) -> None:
        weight = op.weight
        self.below, self.above = neighbours(weight, op.params, op.spec)
        part = ((weight - self.below) / (self.above - self.below)).clamp(0.01, 0.99)
        share = (part - _STRETCH_LOW) / (_STRETCH_HIGH - _STRETCH_LOW)
        self.choice = torch.log(share / (1 - share)).requires_grad_()

    def __call__(self, weight: Tensor) -> Tensor:
        return torch.lerp(self.below, self.above, self.share()).to(weight.dtype)

    def share(self) -> Tensor:
        """How far each weight is from the grid value below to that above: 0..1."""
        stretched = torch.sigmoid(self.choice) * (_STRETCH_HIGH - _STRETCH_LOW) + _STRETCH_LOW
        return stretched.clamp(0, 1)

    def regularizer(self, sharpness: float) -> Tensor:
        """`sum 1 - |2 h(v) - 1|^sharpness`: what pulls each choice to 0 or 1."""
        return (1 - (2 * self.share() - 1).abs().pow(sharpness)).sum()

    def rounded(self) -> Tensor:
        """The values of the codes that were chosen."""
        return torch.where(self.choice.detach() >= 0, self.above, self.below)


def sharpness_at(progress: float, *, warm_up: float, begin: float = 20.0, end: float = 2.0) -> float:
    """The exponent of the regularizer, falling from `begin` to `end` by a half cosine after the warm-up.

    Args:
        progress: 0..1.
        warm_up: the part of it in which choices move freely.
    """
    done = max(0.0, (progress - warm_up) / (1 - warm_up))
    return end + 0.5 * (begin - end) * (1 + math.cos(math.pi * done))
