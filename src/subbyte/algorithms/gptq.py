"""gptq: compensated rounding, with the scales that suit it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp
from subbyte.algorithms.compensated_rounding import CompensatedRounding, Rounded, damped
from subbyte.algorithms.element_grid import ElementGrid
from subbyte.algorithms.input_moments import InputMoments, input_moments, second_moment
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.narrowed_scales import narrowed_scales
from subbyte.algorithms.obstacles import fixed_codes
from subbyte.algorithms.registry import register_algorithm
from subbyte.calibration import calibrate_tensor
from subbyte.spec import QuantParams


@register_algorithm("gptq")
class Gptq(RecoveryMethod):
    """Compensated rounding of weights: GPTQ (Frantar et al., 2023).

    Minimizes `||V X~ - W X||^2` over matrices V of codes. Columns are rounded one after another, and the columns that
    follow compensate for each error: see `CompensatedRounding`. X are the inputs of the op in the float model, X~ those
    in the quantized model, where all earlier ops are rounded already. Rounding begins at the least-squares solution
    `W X X~^T (X~ X~^T)^-1` instead of W, so it also compensates for the errors of earlier ops (the aim of GPTAQ, Li et
    al., 2025).

    Scales are chosen by the same objective. Each row is rounded with its scales multiplied by 1.00, 0.95, ... 0.30, and
    keeps the ratio whose rounded row v has the smallest `(v - w) H (v - w)^T`, H = X~ X~^T: see `narrowed_scales`. The
    min-max scale of 2-bit codes is about twice the best one. Scales that `mse` calibrated are widened to the whole
    range first, as it may clip more than suits this objective. Zero points stay. A group's scale is that of the place
    where its weights are stored, in whatever order they are rounded. Each group of a grouped convolution has its own H.

    Args:
        act_order: Round the inputs with the largest mean square first, while most other columns can still compensate.
            False rounds in storage order. Default: True.
        damping: Added to the diagonal of H, as a fraction of its mean. Default: 0.01.
        block_size: Number of columns that are rounded before the rest is updated. Changes time, not the result.
            Default: 128.
        inputs: The X and X~ of the objective. `corrected` is as above; `quantized` takes X~ for both, as published;
            `float` takes X for both. Default: `corrected`.
    """

    stage: ClassVar[Stage] = Stage.ROUNDING
    excludes: ClassVar[frozenset[str]] = frozenset({"adaround", "reconstruct"})

    act_order: bool = True
    damping: Annotated[float, Field(gt=0)] = 0.01
    block_size: Annotated[int, Field(gt=0)] = 128
    inputs: Literal["quantized", "float", "corrected"] = "corrected"

    def obstacle(self, op: WeightedOp) -> str:
        return fixed_codes(op)

    def units(self, model: PreparedModel) -> list[str]:
        return self.supported(model)

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        op = model.ops[unit]
        _widen_clipped(op)
        begin, hessian = self._problem(model, op)
        rounding = CompensatedRounding.of(hessian, self._order(hessian), self.block_size)

        def rounded(candidates: Sequence[QuantParams]) -> Rounded:
            grid = ElementGrid.stacked([ElementGrid.of(op, params) for params in candidates])
            return rounding(begin.repeat(1, len(candidates), 1), grid.round)

        def row_errors(candidates: Sequence[QuantParams]) -> Tensor:
            errors: Tensor = rounded(candidates).errors.unflatten(1, (len(candidates), -1))
            return errors.transpose(0, 1)

        op.write_params(narrowed_scales(op, row_errors))
        op.write_weight(op.from_matrix(rounded([op.params]).values))

    def _problem(self, model: PreparedModel, op: WeightedOp) -> tuple[Tensor, Tensor]:
        """Return the matrices that rounding begins at, and their damped Hessian."""
        weight = op.matrix(op.weight)
        if self.inputs == "corrected":
            moments = input_moments(model, op.name)
            hessian = damped(moments.own, self.damping)
            return _corrected(weight, moments, hessian), hessian
        calls = model.float_op_calls(op.name) if self.inputs == "float" else model.op_calls(op.name)
        return weight, damped(second_moment(op, calls), self.damping)

    def _order(self, hessian: Tensor) -> Tensor:
        """Return the column indices of each group, [groups, inputs], in the order of rounding."""
        diagonal = hessian.diagonal(dim1=1, dim2=2)
        if self.act_order:
            return torch.argsort(diagonal, dim=1, descending=True, stable=True)
        return torch.arange(diagonal.shape[1], device=diagonal.device).expand_as(diagonal)


def _widen_clipped(op: WeightedOp) -> None:
    """Give an op that `mse` calibrated the scales of its whole range, as the ratios only narrow them."""
    if op.spec.algorithm == "mse" and torch.equal(op.params.scale, calibrate_tensor(op.weight, op.spec).scale):
        op.write_params(calibrate_tensor(op.weight, replace(op.spec, algorithm="minmax")))


def _corrected(weight: Tensor, moments: InputMoments, hessian: Tensor) -> Tensor:
    """Return the least-squares matrices that map quantized inputs to the float outputs, damped towards `weight`."""
    wanted = weight.double() @ (moments.cross + (hessian - moments.own))
    found: Tensor = torch.linalg.solve(hessian, wanted, left=False)
    return found.to(weight.dtype)
