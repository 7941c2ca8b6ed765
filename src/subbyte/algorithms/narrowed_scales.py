"""Search of narrower weight scales by the error that each row is left with."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.numerics import scale_shape, scheme_of, stored_scale, to_blocks
from subbyte.spec import QuantParams

RATIOS = tuple(1 - step / 20 for step in range(15))  # 1.00 to 0.30
_TOGETHER = 5  # ratios; few enough that little is computed in vain where the first ones are the best
_ELEMENTS = 1 << 22  # of copies of a weight: bounds the memory


def narrowed_scales(op: WeightedOp, row_errors: Callable[[Sequence[QuantParams]], Tensor]) -> QuantParams:
    """Return the op's quantization parameters with each scale times the ratio that leaves the smallest error.

    All scales of a row take the same ratio, so the error of each row is the measured one. Rows that share a scale take
    the ratio with the smallest mean error. Ratios fall from 1 until no row's error decreases; zero points stay.

    Args:
        op: Its parameters are read and not changed.
        row_errors: Returns the error of each row of the op's matrices, [candidates, groups, rows], for candidate
            parameters.
    """
    start = QuantParams(op.params.scale.clone(), op.params.zero_point)
    together = min(max(_ELEMENTS // max(op.weight.numel(), 1), 1), _TOGETHER)
    ones = torch.ones(scale_shape(op.weight.shape, op.spec), device=op.weight.device).flatten()
    best, least = ones, torch.full_like(ones, torch.inf)
    for first in range(0, len(RATIOS), together):
        ratios = RATIOS[first : first + together]
        every = row_errors([_scaled(op, start, ratio * ones) for ratio in ratios])
        for ratio, found in zip(ratios, every, strict=True):
            errors = _by_block(op, found)
            best, least = torch.where(errors < least, ratio, best), torch.minimum(errors, least)
            if ratio < 1 and not bool(((errors == least) & (least > 0)).any()):
                return _scaled(op, start, best)
    return _scaled(op, start, best)


def _by_block(op: WeightedOp, row_errors: Tensor) -> Tensor:
    """Return the mean error of the rows that use each scale, [scales]."""
    over_elements = row_errors[..., None].expand(op.matrix(op.weight).shape)
    blocks, counts = to_blocks(op.from_matrix(over_elements), op.spec)
    return blocks.sum(1) / (blocks.shape[1] if counts is None else counts.sum(1))


def _scaled(op: WeightedOp, params: QuantParams, ratio: Tensor) -> QuantParams:
    """Return parameters with each scale multiplied by its ratio, [scales]."""
    factor = ratio.reshape(scale_shape(op.weight.shape, op.spec))
    if scheme_of(op.spec).scales_per_block > 1:
        factor = factor[..., None]
    return QuantParams(stored_scale(params.scale.float() * factor, op.spec), params.zero_point)
