"""Second moments of what an op's matrices multiply: all of the data that its squared output error depends on."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import Call, PreparedModel, WeightedOp, paired
from subbyte.algorithms.chunked_sum import ChunkedSum
from subbyte.errors import CalibrationError


@dataclass(frozen=True)
class InputMoments:
    """Means over all columns that an op's matrices meet in the calibration data.

    For a matrix V in place of W, `mean ||V x~ - W x||^2 = tr(V own V^T) - 2 tr(W cross V^T) + constant`.

    Args:
        own: of `x~ x~^T`, x~ a column as the quantized op meets it: [groups, inputs, inputs], float64.
        cross: of `x x~^T`, x the same column in the float model; likewise.
    """

    own: Tensor
    cross: Tensor


def second_moment(op: WeightedOp, calls: Iterable[Call]) -> Tensor:
    """The mean of `x x^T` over the columns that an op meets in some calls: [groups, inputs, inputs], float64.

    It depends on the columns and their order, not on how calls were cut into batches.

    Raises:
        CalibrationError: there is no call.
    """
    own = ChunkedSum(_square)
    for call in calls:
        own.add(op.columns(call.quantized_input.float()), call.place)
    return _mean(own, op.name)


def input_moments(model: PreparedModel, name: str) -> InputMoments:
    """Of an op's inputs in the model as it is quantized now, its own input quantizer included, and in the float model.

    Raises:
        CalibrationError: no calibration batch reaches the op.
    """
    op, own, cross = model.ops[name], ChunkedSum(_square), ChunkedSum(_product_of_halves)
    for call, float_call in paired(name, model.op_calls(name), model.float_op_calls(name)):
        x = op.columns(call.quantized_input.float())
        own.add(x, call.place)
        cross.add(torch.cat([op.columns(float_call.input.float()), x], 1), call.place)
    return InputMoments(_mean(own, name), _mean(cross, name))


def _square(x: Tensor) -> Tensor:
    return x @ x.mT


def _product_of_halves(both: Tensor) -> Tensor:
    """Return `x y^T` of columns that have x above y: [groups, inputs, inputs]."""
    x, y = both.chunk(2, 1)
    return x @ y.mT


def _mean(products: ChunkedSum, name: str) -> Tensor:
    """Return the mean over columns: [groups, inputs, inputs], float64.

    Raises:
        CalibrationError: there was no column.
    """
    total = products.total()
    if total is None:
        raise CalibrationError(f"op {name!r} was reached by no calibration batch; add a batch that takes this path")
    return total / products.count
