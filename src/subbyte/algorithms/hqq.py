"""hqq: scales and zero points of weights that leave a small error but for few outliers; needs no data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import register_algorithm
from subbyte.numerics import scheme_of, stored_scale, to_blocks
from subbyte.numerics.schemes import Asymmetric
from subbyte.spec import Granularity, QuantParams, TensorSpec


@register_algorithm("hqq")
class Hqq(RecoveryMethod):
    """Find, for each group or channel, the scale and the zero point of least `sum |w - v(w)|^norm`.

    Half-quadratic quantization (Badri and Shaji, 2023): with `norm` below 1 an outlier costs little more than a small
    error, and with a part e of each error set apart, the rest is least squares:

    * e = shrink(w - v(w)), `shrink(r) = sign(r) max(0, |r| - |r|^(norm - 1) / strength)`, r in steps of the grid;
    * scale = `sum g (w - e) / sum g^2`, g the grid values of w;
    * zero point = `mean(code - (w - e) / scale)`, rounded: here it is a code. What is published keeps the scale and
      finds a fractional zero point, which no integer arithmetic could use; so the scale takes over most of its part,
      and it is all that a symmetric type or a codebook has.

    The best of all steps is kept, so that the error never grows.

    Args:
        norm: the exponent of the error; below 1.
        steps: of each group.
        strength: of the first step.
        growth: what it is multiplied by from one step to the next.
    """

    stage: ClassVar[Stage] = Stage.RANGE
    needs_data: ClassVar[bool] = False

    norm: Annotated[float, Field(gt=0, lt=1)] = 0.7
    steps: Annotated[int, Field(gt=0)] = 20
    strength: Annotated[float, Field(gt=0)] = 10.0
    growth: Annotated[float, Field(ge=1)] = 1.01

    def obstacle(self, op: WeightedOp) -> str:
        several = scheme_of(op.spec).scales_per_block > 1
        return f"scheme {op.spec.scheme!r} has several scales for each block" if several else ""

    def units(self, model: PreparedModel) -> list[str]:
        return self.supported(model)

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        op = model.ops.get(unit) or model.projections[unit]
        values, counts = to_blocks(op.weight, op.spec)
        blocks = _Blocks(values, torch.ones_like(values) if counts is None else counts, op.spec)
        found = self._search(blocks, blocks.reshaped(op.params, (len(values), 1)))
        op.write_params(blocks.reshaped(found, op.params.scale.shape))

    def _search(self, blocks: "_Blocks", params: QuantParams) -> QuantParams:
        best, least, strength = params, blocks.loss(params, self.norm), self.strength
        for _ in range(self.steps):
            outliers = shrink(blocks.error(params), strength, self.norm) * params.scale.float()
            params = blocks.fitted(params, blocks.values - outliers)
            loss = blocks.loss(params, self.norm)
            best, least = blocks.chosen(loss < least, params, best), torch.minimum(loss, least)
            strength *= self.growth
        return best


def shrink(x: Tensor, strength: float, norm: float) -> Tensor:
    """`sign(x) max(0, |x| - |x|^(norm - 1) / strength)`: the part of x that is taken for an outlier's."""
    size = x.abs()
    return x.sign() * (size - size.pow(norm - 1) / strength).clamp(min=0)


class _Blocks:
    """The weights of an op, those that share a scale in a row.

    Args:
        values: [blocks, elements], fp32.
        counts: likewise: 0 for what only fills a short last group, else 1.
        spec: of the op's weight.
    """

    def __init__(self, values: Tensor, counts: Tensor, spec: TensorSpec) -> None:
        self.values, self.counts = values, counts
        self.spec = replace(spec, granularity=Granularity(), axis=None)  # each row is a tensor of its own
        self.scheme = scheme_of(spec)

    def error(self, params: QuantParams) -> Tensor:
        """What rounding takes off each value, in steps of the grid."""
        return self.values / params.scale.float() - self.scheme.snap(self.values, params, self.spec)

    def loss(self, params: QuantParams, norm: float) -> Tensor:
        """The sum of |error|^norm of each block: [blocks, 1]."""
        error = self.error(params) * params.scale.float()
        return (error.abs().pow(norm) * self.counts).sum(1, keepdim=True)

    def fitted(self, params: QuantParams, target: Tensor) -> QuantParams:
        """Scale, then zero point, that bring the values of the codes as they are nearest to a target."""
        grid = self.scheme.snap(self.values, params, self.spec)
        along, power = ((self.counts * grid * other).sum(1, keepdim=True) for other in (target, grid))
        scale = torch.where((along > 0) & (power > 0), along / power, params.scale.float())
        stored, zero_point = stored_scale(scale, self.spec), params.zero_point
        if isinstance(self.scheme, Asymmetric) and zero_point is not None:
            offset = ((grid - target / stored.float()) * self.counts).sum(1, keepdim=True)
            moved = zero_point + (offset / self.counts.sum(1, keepdim=True)).round()
            zero_point = moved.clamp(self.spec.qmin, self.spec.qmax).to(torch.int32)
        return QuantParams(stored, zero_point)

    def chosen(self, better: Tensor, new: QuantParams, old: QuantParams) -> QuantParams:
        """The new parameters where they are better: [blocks, 1]."""
        zero_point = old.zero_point
        if zero_point is not None and zero_point.ndim and new.zero_point is not None:
            zero_point = torch.where(better, new.zero_point, zero_point)
        return QuantParams(torch.where(better, new.scale, old.scale), zero_point)

    def reshaped(self, params: QuantParams, shape: Sequence[int]) -> QuantParams:
        """Parameters of each block in another shape; a zero point that all share stays one."""
        zero_point = params.zero_point
        if zero_point is not None and zero_point.numel() == params.scale.numel():
            zero_point = zero_point.reshape(shape)
        return QuantParams(params.scale.reshape(shape), zero_point)
