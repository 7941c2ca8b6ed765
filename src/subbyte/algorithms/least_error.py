"""Scales of a weight by least squared error."""

from dataclasses import replace

from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.calibration import calibrate_tensor
from subbyte.numerics import fake_quantize
from subbyte.spec import QuantParams


def find_least_error(op: WeightedOp) -> None:
    """Give a weight the scales that `mse` finds, where they are better than those that it has."""
    weight = op.weight
    found = calibrate_tensor(weight, replace(op.spec, algorithm="mse"))
    if _error(op, weight, found) < _error(op, weight, op.params):
        op.write_params(found)


def _error(op: WeightedOp, weight: Tensor, params: QuantParams) -> float:
    return float((weight - fake_quantize(weight, params, op.spec)).square().sum())
