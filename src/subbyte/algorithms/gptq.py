"""gptq: rounding whose errors later weights make good."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp
from subbyte.algorithms.compensated_rounding import damped, round_compensated
from subbyte.algorithms.element_grid import ElementGrid
from subbyte.algorithms.input_moments import InputMoments, input_moments, second_moment
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.obstacles import fixed_codes
from subbyte.algorithms.registry import register_algorithm


@register_algorithm("gptq")
class Gptq(RecoveryMethod):
    """Round column by column, and let the columns that are still to come make good each error: GPTQ.

    Minimizes `||V X - W X||^2` over matrices V of codes, for X what the op is given (Frantar et al., 2023): see
    `round_compensated`. Scales and zero points stay as they were found before; a group's are those of the place where
    its weights are stored, in whatever order these are rounded. Ops follow one another in the order they run, each
    group of a grouped convolution with a Hessian of its own.

    Args:
        act_order: round the inputs of most power first, as long as all others can make good their errors; the other way
            is in the order of storage. It costs nothing here, as scales stay where they are.
        damping: what is added to the diagonal of the Hessian, as a part of its mean.
        block_size: how many columns are rounded before the rest is updated; changes time, not the result.
        inputs: `quantized`: X comes from the model as far as it is quantized; `float`: from the float model;
            `corrected`: X~ from the one, X from the other, to minimize `||V X~ - W X||^2`: rounding begins at
            `W X X~^T (X~ X~^T)^-1`, so that it also makes good what the ops before got wrong (an aim of GPTAQ, Li et
            al., 2025).
    """

    stage: ClassVar[Stage] = Stage.ROUNDING
    excludes: ClassVar[frozenset[str]] = frozenset({"adaround", "reconstruct"})

    act_order: bool = True
    damping: Annotated[float, Field(gt=0)] = 0.01
    block_size: Annotated[int, Field(gt=0)] = 128
    inputs: Literal["quantized", "float", "corrected"] = "quantized"

    def obstacle(self, op: WeightedOp) -> str:
        return fixed_codes(op)

    def units(self, model: PreparedModel) -> list[str]:
        return self.supported(model)

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        op = model.ops[unit]
        begin, hessian = self._problem(model, op)
        rounded = round_compensated(begin, hessian, ElementGrid.of(op).round, self._order(hessian), self.block_size)
        op.write_weight(op.from_matrix(rounded))

    def _problem(self, model: PreparedModel, op: WeightedOp) -> tuple[Tensor, Tensor]:
        """The matrices that rounding begins at, and their damped Hessian."""
        weight = op.matrix(op.weight)
        if self.inputs == "corrected":
            moments = input_moments(model, op.name)
            hessian = damped(moments.own, self.damping)
            return _corrected(weight, moments, hessian), hessian
        calls = model.float_op_calls(op.name) if self.inputs == "float" else model.op_calls(op.name)
        return weight, damped(second_moment(op, calls), self.damping)

    def _order(self, hessian: Tensor) -> Tensor:
        """The places of columns, [groups, inputs], in the order they are rounded."""
        diagonal = hessian.diagonal(dim1=1, dim2=2)
        if self.act_order:
            return torch.argsort(diagonal, dim=1, descending=True, stable=True)
        return torch.arange(diagonal.shape[1], device=diagonal.device).expand_as(diagonal)


def _corrected(weight: Tensor, moments: InputMoments, hessian: Tensor) -> Tensor:
    """The matrices that give from quantized inputs what `weight` gives from float ones, damped towards `weight`."""
    wanted = weight.double() @ (moments.cross + (hessian - moments.own))
    found: Tensor = torch.linalg.solve(hessian, wanted, left=False)
    return found.to(weight.dtype)
