"""A weight whose codes and scales are learned while a block is reconstructed."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.numerics import expand
from subbyte.spec import QuantParams


class LearnedRounding(ABC):
    """What a weight's quantizer computes meanwhile; set as its `training_rule`.

    The factor f of each scale, 1 at first, is learned too: with few codes a scale that serves the output beats the one
    that serves the weight.

    Args:
        op: whose weight it is.

    Attributes:
        learned: what the optimizer changes beside `factor`; of the weight's shape.
        unit: how large a step of `learned` is that a learning rate of 1 means.
        factor: of the shape of the scale.
    """

    learned: Tensor
    unit: float

    def __init__(self, op: WeightedOp) -> None:
        self.spec, self.params = op.spec, op.params
        # Other formats hold few scales: a learned one would have to be rounded.
        self.factor = torch.ones_like(self.params.scale).requires_grad_(self.spec.scale_format == "fp32")

    @abstractmethod
    def __call__(self, weight: Tensor) -> Tensor:
        """The value to compute with, of `weight`'s shape and dtype."""

    @abstractmethod
    def chosen(self) -> Tensor:
        """The values (fp32) of the codes that were chosen, for scales with their factor."""

    def penalty(self, progress: float) -> Tensor | float:
        """What is added to the loss when a part (0..1) of the steps is done."""
        return 0.0

    def finish(self, op: WeightedOp) -> None:
        """Give the op the codes that were chosen, and the scales that were learned."""
        with torch.no_grad():
            values = self.chosen()
            op.write_params(QuantParams(self.params.scale * self.factor, self.params.zero_point))
            op.write_weight(values)

    def spread_factor(self) -> Tensor:
        """The factor, broadcastable against the weight."""
        return expand(self.factor, self.learned.shape, self.spec)
