"""Second moments of what an op's matrices multiply: all of the data that its squared output error depends on."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from subbyte.adaptor.pytorch.prepared import Call, PreparedModel, WeightedOp, paired
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

    Raises:
        CalibrationError: there is no call.
    """
    mean = _Mean(op.name)
    for call in calls:
        x = op.columns(call.quantized_input.float())
        mean.add(x, x)
    return mean.value()


def input_moments(model: PreparedModel, name: str) -> InputMoments:
    """Of an op's inputs in the model as it is quantized now, its own input quantizer included, and in the float model.

    Raises:
        CalibrationError: no calibration batch reaches the op.
    """
    op, own, cross = model.ops[name], _Mean(name), _Mean(name)
    for call, float_call in paired(name, model.op_calls(name), model.float_op_calls(name)):
        x = op.columns(call.quantized_input.float())
        own.add(x, x)
        cross.add(op.columns(float_call.input.float()), x)
    return InputMoments(own.value(), cross.value())


class _Mean:
    """Of `x y^T` over columns.

    Args:
        name: of the op whose columns they are, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.total: Tensor | None = None
        self.count = 0

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take in the columns of a call: [groups, inputs, columns], fp32."""
        product = (x @ y.transpose(1, 2)).double()
        self.total = product if self.total is None else self.total.add_(product)
        self.count += x.shape[2]

    def value(self) -> Tensor:
        """[groups, inputs, inputs], float64.

        Raises:
            CalibrationError: there was no column.
        """
        if self.total is None or not self.count:
            raise CalibrationError(
                f"op {self.name!r} was reached by no calibration batch; add a batch that takes this path"
            )
        return self.total / self.count
