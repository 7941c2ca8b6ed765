"""kl: the clipping range that loses least information."""

import torch
from torch import Tensor

from subbyte.calibration.clip_search import cut, search
from subbyte.calibration.distribution import Distribution
from subbyte.calibration.histogram import Histogram
from subbyte.calibration.registry import register_algorithm
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec

_BINS = 2048
_EPSILON = 1e-9


@register_algorithm("kl", Histogram)
def kl(distribution: Distribution, spec: TensorSpec) -> QuantParams:
    """Minimize the divergence KL(P || Q) over thresholds of |x| (8-bit Inference with TensorRT, Migacz, 2017).

    A candidate is the range `max(minimum, -t) .. min(maximum, t)` for t = 1.00, 0.98, ... 0.02 of the longer end.
    P is the histogram clipped to the candidate range, what was clipped added to its outermost bins. Q is what
    quantizing leaves of the unclipped part: the mass of the bins that share a code, spread evenly over those
    of them that are not empty. Codes come from the quantizer itself, so any width, zero point or codebook works.
    Exact zeros are left out: a grid holds them at any range, and after a ReLU their spike in one bin, which Q
    would smear over its neighbours, would drive the range towards zero.
    """
    histogram = _histogram(distribution)
    scheme = scheme_of(spec)

    def loss(params: QuantParams, minimum: Tensor, maximum: Tensor) -> Tensor:
        candidates = len(minimum) // max(len(distribution.minimum), 1)
        centres, counts = (each.repeat(candidates, 1) for each in histogram)
        inside = (centres >= minimum) & (centres <= maximum)
        kept = counts * inside
        clipped = kept.clone()
        _add_at(clipped, inside, 0, (counts * (centres < minimum)).sum(1))
        _add_at(clipped, inside, -1, (counts * (centres > maximum)).sum(1))
        codes = scheme.quantize(centres, params, spec).long() - spec.qmin
        spread = _spread(kept, codes, spec.qmax - spec.qmin + 1)
        return _divergence(clipped, spread)

    return search(distribution, spec, loss, cut)


def _histogram(distribution: Distribution) -> tuple[Tensor, Tensor]:
    """Bin centres, evenly spaced from each block's minimum to its maximum, and counts but of zeros: [blocks, bins]."""
    values, counts = distribution.weighted()
    counts = counts * (values != 0)
    low, span = distribution.minimum[:, None], (distribution.maximum - distribution.minimum)[:, None]
    width = torch.where(span > 0, span, 1.0) / _BINS
    index = ((values - low) / width).long().clamp_(0, _BINS - 1)
    histogram = values.new_zeros(values.shape[0], _BINS).scatter_add_(1, index, counts.float())
    centres = low + (torch.arange(_BINS, dtype=torch.float32, device=values.device) + 0.5) * width
    return centres, histogram


def _add_at(histogram: Tensor, inside: Tensor, end: int, mass: Tensor) -> None:
    """Add `mass` [blocks] to the first (end 0) or last (end -1) bin of each row that is inside."""
    index = inside.float().argmax(1) if end == 0 else inside.shape[1] - 1 - inside.flip(1).float().argmax(1)
    histogram.scatter_add_(1, index[:, None], (mass * inside.any(1))[:, None])


def _spread(kept: Tensor, codes: Tensor, levels: int) -> Tensor:
    filled = (kept > 0).float()
    mass = kept.new_zeros(kept.shape[0], levels).scatter_add_(1, codes, kept)
    bins = torch.zeros_like(mass).scatter_add_(1, codes, filled)
    return (mass / bins.clamp(min=1.0)).gather(1, codes) * filled


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(P || Q) of rows of masses; infinite where a candidate keeps nothing."""
    q_total = q.sum(1, keepdim=True)
    p = p / p.sum(1, keepdim=True).clamp(min=_EPSILON)
    q = q / q_total.clamp(min=_EPSILON)
    terms = torch.where(p > 0, p * (p.clamp(min=_EPSILON) / q.clamp(min=_EPSILON)).log(), 0.0)
    return torch.where(q_total[:, 0] > 0, terms.sum(1), torch.inf)
