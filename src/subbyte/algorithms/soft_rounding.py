"""Rounding that is learned softly: each weight moves between the two grid values around it."""

import math

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.algorithms.learned_rounding import LearnedRounding
from subbyte.numerics import neighbours

WARM_UP = 0.2  # the part of the steps in which choices move freely
PENALTY = 0.01  # of a weight that lies half-way
_STRETCH_LOW, _STRETCH_HIGH = -0.1, 1.1  # so that 0 and 1 are reached, and left again


class SoftRounding(LearnedRounding):
    """`f (below + h(v) (above - below))` with h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1), begun at the weight itself.

    AdaRound (Nagel et al., 2020), equations 22 to 24; between the values of a codebook as between whole numbers.
    """

    def __init__(self, op: WeightedOp) -> None:
        super().__init__(op)
        weight = op.weight
        self.below, self.above = neighbours(weight, self.params, self.spec)
        part = ((weight - self.below) / (self.above - self.below)).clamp(0.01, 0.99)
        share = (part - _STRETCH_LOW) / (_STRETCH_HIGH - _STRETCH_LOW)
        self.learned = torch.log(share / (1 - share)).requires_grad_()
        self.unit = 1.0

    def __call__(self, weight: Tensor) -> Tensor:
        return (torch.lerp(self.below, self.above, self.share()) * self.spread_factor()).to(weight.dtype)

    def share(self) -> Tensor:
        """How far each weight is from the grid value below to that above: 0..1."""
        stretched = torch.sigmoid(self.learned) * (_STRETCH_HIGH - _STRETCH_LOW) + _STRETCH_LOW
        return stretched.clamp(0, 1)

    def penalty(self, progress: float) -> Tensor | float:
        """`0.01 sum 1 - |2 h(v) - 1|^b`, which pulls each choice to 0 or 1; none in the warm-up."""
        if progress < WARM_UP:
            return 0.0
        return PENALTY * (1 - (2 * self.share() - 1).abs().pow(sharpness_at(progress))).sum()

    def chosen(self) -> Tensor:
        return torch.where(self.learned >= 0, self.above, self.below) * self.spread_factor()


def sharpness_at(progress: float, *, begin: float = 20.0, end: float = 2.0) -> float:
    """The exponent b of the penalty: `begin` in the warm-up, then falling to `end` by a half cosine."""
    done = max(0.0, (progress - WARM_UP) / (1 - WARM_UP))
    return end + 0.5 * (begin - end) * (1 + math.cos(math.pi * done))
