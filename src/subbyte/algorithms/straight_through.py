"""Rounding that is learned straight through: the weight moves, and its codes follow."""

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.algorithms.learned_rounding import LearnedRounding
from subbyte.numerics import fake_quantize


class StraightThrough(LearnedRounding):
    """`f q(w / f)`, where q quantizes and passes gradients straight through (Bengio et al., 2013).

    The gradient of f is that of LSQ's scale (Esser et al., 2020), for every data type. A step of the weight is measured
    by its scale, so that a learning rate means the same for every layer.
    """

    def __init__(self, op: WeightedOp) -> None:
        super().__init__(op)
        self.learned = op.weight.clone().requires_grad_()
        self.unit = float(self.params.scale.float().mean())

    def __call__(self, weight: Tensor) -> Tensor:
        factor = self.spread_factor()
        return (fake_quantize(self.learned / factor, self.params, self.spec) * factor).to(weight.dtype)

    def chosen(self) -> Tensor:
        return self(torch.empty(0))
