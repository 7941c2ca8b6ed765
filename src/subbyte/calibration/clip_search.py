"""Candidates for search algorithms: the observed range, made narrower step by step."""

from collections.abc import Callable

import torch
from torch import Tensor

from subbyte.calibration.distribution import Distribution
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec

STEPS = 50
_ELEMENTS = 1 << 18  # values in all candidates that are compared together: bounds the memory
_LEAST_VALUES = 2048  # of a block: a loss may count values in as many bins

Loss = Callable[[QuantParams, Tensor, Tensor], Tensor]
Range = Callable[[Distribution, float], tuple[Tensor, Tensor]]


def scaled(distribution: Distribution, ratio: float) -> tuple[Tensor, Tensor]:
    """The range `ratio * minimum .. ratio * maximum`: [blocks] each."""
    return distribution.minimum * ratio, distribution.maximum * ratio


def cut(distribution: Distribution, ratio: float) -> tuple[Tensor, Tensor]:
    """The range `max(minimum, -t) .. min(maximum, t)` for t = ratio * max(|minimum|, |maximum|): [blocks] each.

    The shorter end stays whole until t reaches it: that of a GELU holds most of the values.
    """
    threshold = torch.maximum(distribution.minimum.abs(), distribution.maximum.abs()) * ratio
    return torch.maximum(distribution.minimum, -threshold), torch.minimum(distribution.maximum, threshold)


def search(distribution: Distribution, spec: TensorSpec, loss: Loss, narrowed: Range = scaled) -> QuantParams:
    """Return the parameters of least loss among the ranges narrowed by 1.00, 0.98, ... 0.02.

    Args:
        distribution: of every block.
        spec: dtype and scheme.
        loss: (params [rows, 1], minimum [rows, 1], maximum [rows, 1]) -> loss [rows]. The rows are the blocks for one
            candidate after another.
        narrowed: (distribution, ratio) -> the ends of a candidate, [blocks] each.

    Returns:
        For each block the parameters of its own best candidate; of equal ones the widest.
    """
    blocks = len(distribution.minimum)
    values = 0 if distribution.values is None else distribution.values.shape[1]
    together = min(max(_ELEMENTS // max(blocks * max(values, _LEAST_VALUES), 1), 1), STEPS)
    best: QuantParams | None = None
    least = torch.full_like(distribution.minimum, torch.inf)
    for first in range(0, STEPS, together):
        ends = [narrowed(distribution, 1.0 - step / STEPS) for step in range(first, min(first + together, STEPS))]
        minimum, maximum = (torch.cat(each)[:, None] for each in zip(*ends, strict=True))
        params = scheme_of(spec).from_range(minimum, maximum, spec)
        for candidate, error in enumerate(loss(params, minimum, maximum).view(len(ends), blocks)):
            found = _rows(params, candidate, blocks)
            better = error < least
            best = found if best is None else _choose(better, found, best)
            least = torch.where(better, error, least)
    assert best is not None
    return best


def _rows(params: QuantParams, candidate: int, blocks: int) -> QuantParams:
    """Return the parameters of all blocks for one candidate: [blocks, ...]."""
    rows, zero_point = slice(candidate * blocks, (candidate + 1) * blocks), params.zero_point
    if zero_point is not None and zero_point.ndim:
        zero_point = zero_point[rows, 0]
    return QuantParams(params.scale[rows, 0], zero_point)


def _choose(better: Tensor, new: QuantParams, old: QuantParams) -> QuantParams:
    def choose(candidate: Tensor, known: Tensor) -> Tensor:
        return torch.where(better.reshape(-1, *(1 for _ in known.shape[1:])), candidate, known)

    zero_point = old.zero_point
    if zero_point is not None and new.zero_point is not None and zero_point.ndim:
        zero_point = choose(new.zero_point, zero_point)
    return QuantParams(choose(new.scale, old.scale), zero_point)
