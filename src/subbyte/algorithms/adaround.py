"""adaround: which way each weight is rounded, learned op by op."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp
from subbyte.algorithms.input_moments import InputMoments, input_moments
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.obstacles import fixed_codes
from subbyte.algorithms.registry import register_algorithm
from subbyte.algorithms.soft_rounding import PENALTY, SoftRounding
from subbyte.numerics import Affine, Codebook, scheme_of

_QUICK_STEPS = 100


@register_algorithm("adaround")
class AdaRound(RecoveryMethod):
    """Learn, op by op, which of its two neighbours on the grid each weight is rounded to.

    Minimizes `||V X~ - W X||^2 + sum 1 - |2h - 1|^b` over the choices h of SoftRounding by Adam (Nagel et al., 2020,
    equation 25, without the activation function behind an op). X~ is what the quantized model gives the op, X what the
    float one does. The op is linear, so that the error is a function of the moments of its inputs: every step sees all
    data, and none of it is kept. The error of each output channel is measured in that of one weight which is a step
    off. Scales stay.

    Args:
        steps: of each op.
        learning_rate: of the choices.
    """

    stage: ClassVar[Stage] = Stage.ROUNDING
    excludes: ClassVar[frozenset[str]] = frozenset({"gptq", "reconstruct"})

    steps: Annotated[int, Field(gt=0)] = 1000
    learning_rate: Annotated[float, Field(gt=0)] = 0.01

    def obstacle(self, op: WeightedOp) -> str:
        if isinstance(scheme_of(op.spec), Affine | Codebook):
            return fixed_codes(op)
        return f"scheme {op.spec.scheme!r} does not tell which codes are neighbours"

    def quick(self) -> "AdaRound":
        return self.model_copy(update={"steps": min(self.steps, _QUICK_STEPS)})

    def units(self, model: PreparedModel) -> list[str]:
        return self.supported(model)

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        op = model.ops[unit]
        rounding = SoftRounding(op)
        self._learn(rounding, OutputError(op, input_moments(model, unit), rounding))
        rounding.finish(op)

    def _learn(self, rounding: SoftRounding, error: "OutputError") -> None:
        optimizer = torch.optim.Adam([rounding.learned], lr=self.learning_rate)
        for step in range(self.steps):
            with torch.enable_grad():
                loss = error(rounding(error.weight)) + rounding.penalty(step / self.steps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class OutputError:
    """What an op's squared output error is with other weights, but for a constant.

    With D = V - W, `tr(D own D^T) + 2 tr(W (own - cross) D^T)`: see InputMoments.

    Args:
        op: with its float weight W.
        moments: of its inputs.
        rounding: tells how far the grid values of each weight are from one another.
    """

    def __init__(self, op: WeightedOp, moments: InputMoments, rounding: SoftRounding) -> None:
        self.op = op
        self.weight = op.weight
        matrix = op.matrix(self.weight)
        self.own = moments.own.to(matrix.dtype)
        self.pull = (matrix.double() @ (moments.own - moments.cross)).to(matrix.dtype)
        step = op.matrix(rounding.above - rounding.below).square().mean(2, keepdim=True)
        power = moments.own.diagonal(dim1=1, dim2=2).mean(1).to(matrix.dtype)[:, None, None]
        whole = step * power  # what one weight that is a whole step off does by itself
        self.share = torch.where(whole > 0, PENALTY / whole, 0.0)

    def __call__(self, weight: Tensor) -> Tensor:
        change = self.op.matrix(weight - self.weight)
        return (change * (change @ self.own + 2 * self.pull) * self.share).sum()
