"""Rounding that is learned: each weight moves between the two grid values around it."""

import math

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.numerics import expand, neighbours
from subbyte.spec import QuantParams

_STRETCH_LOW, _STRETCH_HIGH = -0.1, 1.1  # so that 0 and 1 are reached, and left again


class SoftRounding:
    """`f (below + h(v) (above - below))` with h(v) = clamp(1.2 sigmoid(v) - 0.1, 0, 1), begun at the weight itself.

    AdaRound (Nagel et al., 2020), equations 22 to 24; between the values of a codebook as between whole numbers. The
    factor f of each scale, 1 at first, can be learned too: with few codes a scale that serves the output beats the one
    that serves the weight.

    Args:
        op: whose weight it is.
    """

    def __init__(self, op: WeightedOp) -> None:
        weight = op.weight
        self.spec, self.params = op.spec, op.params
        self.below, self.above = neighbours(weight, self.params, self.spec)
        part = ((weight - self.below) / (self.above - self.below)).clamp(0.01, 0.99)
        share = (part - _STRETCH_LOW) / (_STRETCH_HIGH - _STRETCH_LOW)
        self.choice = torch.log(share / (1 - share)).requires_grad_()
        # Other formats hold few scales: a learned one would have to be rounded.
        self.factor = torch.ones_like(self.params.scale).requires_grad_(self.spec.scale_format == "fp32")

    def __call__(self, weight: Tensor) -> Tensor:
        values = torch.lerp(self.below, self.above, self.share())
        return (values * expand(self.factor, values.shape, self.spec)).to(weight.dtype)

    def share(self) -> Tensor:
        """How far each weight is from the grid value below to that above: 0..1."""
        stretched = torch.sigmoid(self.choice) * (_STRETCH_HIGH - _STRETCH_LOW) + _STRETCH_LOW
        return stretched.clamp(0, 1)

    def regularizer(self, sharpness: float) -> Tensor:
        """`sum 1 - |2 h(v) - 1|^sharpness`: what pulls each choice to 0 or 1."""
        return (1 - (2 * self.share() - 1).abs().pow(sharpness)).sum()

    def finish(self, op: WeightedOp) -> None:
        """Give the op the codes that were chosen, and the scales that were learned."""
        factor = self.factor.detach()
        values = torch.where(self.choice.detach() >= 0, self.above, self.below)
        op.write_params(QuantParams(self.params.scale * factor, self.params.zero_point))
        op.write_weight(values * expand(factor, values.shape, self.spec))


def sharpness_at(progress: float, *, warm_up: float, begin: float = 20.0, end: float = 2.0) -> float:
    """The exponent of the regularizer, falling from `begin` to `end` by a half cosine after the warm-up.

    Args:
        progress: 0..1.
        warm_up: the part of it in which choices move freely.
    """
    done = max(0.0, (progress - warm_up) / (1 - warm_up))
    return end + 0.5 * (begin - end) * (1 + math.cos(math.pi * done))
