"""Losses of one model beside another on the same samples, and how sure they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from statistics import NormalDist

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """A loss with a bound on each side, each of which holds with the same confidence.

    Args:
        loss: mean over the samples.
        low: the true loss is above this with the confidence.
        high: the true loss is below this with the confidence.
        samples: number of samples.
    """

    loss: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class PairedLoss:
    """A mean loss and the samples that it comes from.

    Args:
        value: mean loss.
        residuals: how far each sample's loss is from the mean, fp64 [samples].
        whole: what one sample would add to the sum if all of its score were lost.
    """

    value: float
    residuals: Tensor
    whole: float

    def interval(self, confidence: float, samples: int | None = None) -> Interval:
        """Return the loss with its one-sided bounds.

        The bounds are those of a normal distribution of the mean, with a little more than one sample added: one that is
        lost altogether for the upper bound, one that is gained for the lower one. It stands for what so few samples
        cannot show. Its weight makes the bounds exact where no sample differs: n equal answers then show, with a
        confidence c, that fewer than -log(1 - c) / n are lost (2.3 of 100 with 90 %).

        Args:
            confidence: of each bound, from 0.5 to below 1.
            samples: number of samples for which the bounds are predicted. Default: the number that there are.
        """
        seen = len(self.residuals)
        count = seen if samples is None else samples
        normal = NormalDist().inv_cdf(confidence)
        added = (((normal**2 - 4 * log(1 - confidence)) ** 0.5 - normal) / 2) ** 2
        squares = count * float(self.residuals.square().mean()) + added * self.whole**2
        margin = (added * self.whole + normal * squares**0.5) / count
        return Interval(self.value, self.value - margin, self.value + margin, count)


def paired_loss(scores: Tensor, reference: Tensor, *, relative: bool, higher_is_better: bool) -> PairedLoss:
    """Return how much worse the scores are than a reference model's on the same samples.

    A relative loss is the quotient of two means, and its residuals are those of the quotient to the first order.

    Args:
        scores: fp64 [samples].
        reference: fp64 [samples].
        relative: whether the loss is a share of the reference model's mean score.
        higher_is_better: whether high scores are good.
    """
    both = torch.cat([scores, reference, torch.zeros(1, dtype=reference.dtype)])
    whole = float(both.max() - both.min())
    worse = reference - scores if higher_is_better else scores - reference
    if not relative:
        value = float(worse.mean())
        return PairedLoss(value, worse - value, whole)
    mean = float(reference.mean())
    if mean == 0:
        return PairedLoss(float("inf"), torch.zeros_like(worse), whole)
    value = float(worse.mean()) / abs(mean)
    return PairedLoss(value, (worse - value * reference * (1 if mean > 0 else -1)) / abs(mean), whole / abs(mean))


def weighted_loss(losses: Mapping[str, PairedLoss], weights: Mapping[str, float]) -> PairedLoss:
    """Return the weighted mean of several losses on the same samples, in which those without a weight do not count."""
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    parts = [share * losses[name].residuals for name, share in shares.items()]
    return PairedLoss(
        sum(share * losses[name].value for name, share in shares.items()),
        torch.stack(parts).sum(0),
        sum(share * losses[name].whole for name, share in shares.items()),
    )


def worst(intervals: Sequence[Interval]) -> Interval:
    """Return the interval with the highest upper bound.

    Where each of several losses must be tolerable, each is tested with the full confidence: if one of them is not
    tolerable, it passes by chance no more often than stated, whatever the others do (Berger, 1982).
    """
    return max(intervals, key=lambda each: each.high)


def samples_needed(loss: PairedLoss, max_loss: float, confidence: float) -> int:
    """Return how many samples show that a model which answers all of them alike loses no more than `max_loss`."""
    return ceil(-log(1 - confidence) * loss.whole / max_loss) if max_loss > 0 else 0
