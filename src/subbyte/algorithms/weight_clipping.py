"""Narrower ranges for the scales of a weight, where the outputs come nearer to what they were."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.algorithms.channel_moments import sums_of_powers
from subbyte.algorithms.chunked_sum import ChunkedSum
from subbyte.calibration import calibrate_tensor
from subbyte.numerics import expand, fake_quantize, scale_shape, to_blocks
from subbyte.spec import Granularity, QuantParams

_SAMPLES_AT_ONCE = 32
_COLUMNS_AT_ONCE = 128  # few, as each op of the model keeps as many


@dataclass
class ElementMoments:
    """Mean and mean square of each input that an op's matrices are multiplied by, as inputs pass by.

    Args:
        op: whose.
        powers: sums of inputs and of their squares, float64 [2, groups, inputs].
    """

    op: WeightedOp
    powers: ChunkedSum = field(default_factory=lambda: ChunkedSum(sums_of_powers, _COLUMNS_AT_ONCE))

    def see(self, x: Tensor) -> None:
        """Take in the input of one call."""
        for part in x.split(_SAMPLES_AT_ONCE):
            self.powers.add(self.op.columns(part.float()))

    def over_weight(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (fp32) of what each weight meets, in the weight's shape."""
        sums = self.powers.total()
        assert sums is not None
        mean, square = sums / self.powers.count
        variance = (square - mean.square()).clamp(min=0)
        shape = self.op.matrix(self.op.weight).shape
        return tuple(  # type: ignore[return-value]
            self.op.from_matrix(each.float()[:, None].expand(shape)) for each in (mean, variance)
        )


def clipped_params(op: WeightedOp, moments: ElementMoments, ratios: tuple[float, ...]) -> QuantParams:
    """The scales with which each block's part of the outputs has the smallest error.

    Of a block (what shares a scale) with error d = Q(w) - w the error is `sum d^2 var(x) + (sum d mean(x))^2`: that of
    its products where inputs vary independently of each other. Candidates are the scales that the spec's algorithm
    finds of the weight clipped to a part of the range of each block.

    Args:
        op: its weight is read.
        moments: of its inputs.
        ratios: the parts; of equally good ones the first is taken.
    """
    weight, spec = op.weight, op.spec
    blocks, _ = to_blocks(weight, spec)
    shape = scale_shape(weight.shape, spec)
    low, high = (expand(end.reshape(shape), weight.shape, spec) for end in torch.aminmax(blocks, dim=1))
    best, least = op.params, torch.full((len(blocks),), torch.inf, dtype=torch.float64, device=weight.device)
    for ratio in ratios:
        params = calibrate_tensor(torch.minimum(torch.maximum(weight, low * ratio), high * ratio), spec)
        error = _block_errors(op, fake_quantize(weight, params, spec) - weight, moments)
        better = error < least
        best, least = _chosen(better, params, best), torch.minimum(error, least)
    return best


def _block_errors(op: WeightedOp, difference: Tensor, moments: ElementMoments) -> Tensor:
    """[blocks], float64."""
    mean, variance = moments.over_weight()
    spec = op.spec
    whole = spec.granularity.kind == "per_tensor"
    rows = replace(spec, granularity=Granularity("per_channel"), axis=op.handler.channel_axis) if whole else spec
    spread = to_blocks(difference.square() * variance, rows)[0].double().sum(1)
    shifted = to_blocks(difference * mean, rows)[0].double().sum(1)
    errors = spread + shifted.square()
    return errors.sum()[None] if whole else errors


def _chosen(better: Tensor, new: QuantParams, old: QuantParams) -> QuantParams:
    def choose(one: Tensor, other: Tensor) -> Tensor:
        by_block = (one.reshape(len(better), -1), other.reshape(len(better), -1))
        return torch.where(better[:, None], *by_block).reshape(one.shape)

    points = new.zero_point, old.zero_point
    if points[0] is None or points[1] is None or points[0].numel() < len(better):
        return QuantParams(choose(new.scale, old.scale), new.zero_point)
    return QuantParams(choose(new.scale, old.scale), choose(points[0], points[1]))
