"""Candidates for search algorithms: the observed range, scaled down step by step."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from subbyte.calibration.distribution import Distribution
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec

STEPS = 50

Loss = Callable[[QuantParams, Tensor, Tensor], Tensor]


def search(distribution: Distribution, spec: TensorSpec, loss: Loss) -> QuantParams:
    """The parameters of least loss among the observed range times 1.00, 0.98, ... 0.02.

    Args:
        distribution: of every block.
        spec: dtype and scheme.
        loss: (params [blocks, 1], minimum [blocks, 1], maximum [blocks, 1]) -> loss [blocks].

    Returns:
        for every block the parameters of its own best candidate; of equal ones the widest.
    """
    best: QuantParams | None = None
    least = torch.full_like(distribution.minimum, torch.inf)
    for params, minimum, maximum in _candidates(distribution, spec):
        error = loss(params, minimum, maximum)
        if best is None:
            best, least = params, error
            continue
        better = error < least
        least = torch.where(better, error, least)
        best = _choose(better, params, best)
    assert best is not None
    return _flat(best)


def _candidates(distribution: Distribution, spec: TensorSpec) -> Iterator[tuple[QuantParams, Tensor, Tensor]]:
    scheme = scheme_of(spec)
    for step in range(STEPS):
        ratio = 1.0 - step / STEPS
        minimum, maximum = distribution.minimum[:, None] * ratio, distribution.maximum[:, None] * ratio
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
