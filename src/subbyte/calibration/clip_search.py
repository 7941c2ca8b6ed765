"""Candidates for search algorithms: the observed range, made narrower step by step."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from subbyte.calibration.distribution import Distribution
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec

STEPS = 50

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
    """The parameters of least loss among the ranges narrowed by 1.00, 0.98, ... 0.02.

    Args:
        distribution: of every block.
        spec: dtype and scheme.
        loss: (params [blocks, 1], minimum [blocks, 1], maximum [blocks, 1]) -> loss [blocks].
        narrowed: (distribution, ratio) -> the ends of a candidate, [blocks] each.

    Returns:
        for every block the parameters of its own best candidate; of equal ones the widest.
    """
    best: QuantParams | None = None
    least = torch.full_like(distribution.minimum, torch.inf)
    for params, minimum, maximum in _candidates(distribution, spec, narrowed):
        error = loss(params, minimum, maximum)
        if best is None:
            best, least = params, error
            continue
        better = error < least
        least = torch.where(better, error, least)
        best = _choose(better, params, best)
    assert best is not None
    return _flat(best)


def _candidates(
    distribution: Distribution, spec: TensorSpec, narrowed: Range
) -> Iterator[tuple[QuantParams, Tensor, Tensor]]:
    scheme = scheme_of(spec)
    for step in range(STEPS):
        minimum, maximum = (end[:, None] for end in narrowed(distribution, 1.0 - step / STEPS))
        yield scheme.from_range(minimum, maximum, spec), minimum, maximum


def _choose(better: Tensor, new: QuantParams, old: QuantParams) -> QuantParams:
    def choose(candidate: Tensor, known: Tensor) -> Tensor:
        return torch.where(better.reshape(-1, *(1 for _ in known.shape[1:])), candidate, known)

    zero_point = old.zero_point
    if zero_point is not None and new.zero_point is not None and zero_point.ndim:
        zero_point = choose(new.zero_point, zero_point)
    return QuantParams(choose(new.scale, old.scale), zero_point)


def _flat(params: QuantParams) -> QuantParams:
    zero_point = params.zero_point
    return QuantParams(
        params.scale[:, 0], zero_point[:, 0] if zero_point is not None and zero_point.ndim else zero_point
    )
