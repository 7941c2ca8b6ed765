"""An evaluation that ends as soon as it is certain that the loss is not tolerable."""

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import EvaluationError, TuningError
from subbyte.tuning.scores import read_scores

_LARGEST_BET = 0.75  # of what is owned, so that no sample takes all of it


@dataclass(frozen=True)
class EarlyStopping:
    """When an evaluation that yields scores ends before its last sample.

    Args:
        confidence: with which a model that is given up would have been given up on all samples, too.
        lowest: that a sample can score.
        highest: that a sample can score.

    Raises:
        TuningError: no confidence, or no range.
    """

    confidence: float = 0.99
    lowest: float = 0.0
    highest: float = 1.0

    def __post_init__(self) -> None:
        values = (self.confidence, self.lowest, self.highest)
        if any(not isinstance(value, Real) or isinstance(value, bool) for value in values):
            raise TuningError(
                "early_stopping: a confidence is expected, as in 0.99, and numbers as the range of scores, not "
                f"{', '.join(map(repr, values))}"
            )
        if not 0.5 <= self.confidence < 1:
            raise TuningError(
                f"early_stopping is the confidence, from 0.5 to below 1, as in 0.99, not {self.confidence}"
            )
        if not (math.isfinite(self.lowest) and math.isfinite(self.highest) and self.lowest < self.highest):
            raise TuningError(f"early_stopping: scores range from {self.lowest} to {self.highest}, which is no range")


def early_stopping_of(given: Any) -> EarlyStopping | None:
    """None, a confidence, or an EarlyStopping.

    Raises:
        TuningError: it is none of these.
    """
    return given if given is None or isinstance(given, EarlyStopping) else EarlyStopping(given)


@dataclass(frozen=True)
class Verdict:
    """What came of an evaluation.

    Args:
        metric: the mean score; of one that ended early the float model's less the mean difference so far.
        samples: that were looked at when it was given up; None where it was not.
        scores: of the samples that were looked at, fp64.
    """

    metric: float
    samples: int | None
    scores: Tensor = field(repr=False, compare=False)


@dataclass(frozen=True)
class SequentialTest:
    """Whether the mean difference to the float model's scores is above `tolerable`, sample by sample.

    A test by betting (Waudby-Smith and Ramdas, 2024, sampling without replacement). Let x be a sample's difference,
    brought to 0..1, m the tolerable mean of all N, and m_t = (N m - sum of the x before) / (N - t + 1): the mean that
    those left would have, were the mean of all m. Who bets that the mean is above m has, after each sample, the wealth
    W_t = W_(t-1) (1 + b_t (x_t - m_t)), with a stake b_t >= 0 that the samples before decide. If the mean is not above
    m, W reaches 1 / (1 - confidence) with a chance of at most 1 - confidence, however often one looks (Ville, 1939).
    No normal distribution is assumed; but the order of the samples must be a random one.

    What is not given up is looked at to the end: it may be the model that is chosen, whose metric must be no estimate.

    Args:
        reference: the float model's scores, fp64 [samples].
        tolerable: the mean difference that is tolerable, in the scores' own units.
        higher_is_better: of the scores.
        stopping: how certain the outcome is to be, and the range of scores.
    """

    reference: Tensor = field(repr=False)
    tolerable: float
    higher_is_better: bool
    stopping: EarlyStopping

    def __post_init__(self) -> None:
        self._check_range(self.reference)

    def judge(self, given: Iterator[Any]) -> Verdict:
        """Take in scores until they are too bad.

        Raises:
            EvaluationError: a score is no finite number or out of range, or there are not as many as of the float
                model.
        """
        span = self.stopping.highest - self.stopping.lowest
        bets = _Bets(len(self.reference), (self.tolerable + span) / (2 * span), self.stopping.confidence)
        seen: list[Tensor] = []
        with closing(read_scores(given)) as batches:
            for scores in batches:
                self._check_range(scores)
                difference = self._difference(scores, bets.count)
                seen.append(scores)
                bets.place((difference + span) / (2 * span))
                if bets.are_won and bets.count < len(self.reference):
                    return Verdict(self._estimated(torch.cat(seen)), bets.count, torch.cat(seen))
        if bets.count < len(self.reference):
            raise EvaluationError(
                f"the evaluation yielded {bets.count} scores, and {len(self.reference)} of the float model"
            )
        return Verdict(float(torch.cat(seen).mean()), None, torch.cat(seen))

    def _difference(self, scores: Tensor, start: int) -> Tensor:
        expected = self.reference[start : start + len(scores)]
        if len(expected) < len(scores):
            raise EvaluationError(
                f"the evaluation yielded {start + len(scores)} scores or more, and {len(self.reference)} of the float "
                "model"
            )
        return expected - scores if self.higher_is_better else scores - expected

    def _estimated(self, scores: Tensor) -> float:
        return float(self.reference.mean() + (scores - self.reference[: len(scores)]).mean())

    def _check_range(self, scores: Tensor) -> None:
        lowest, highest = self.stopping.lowest, self.stopping.highest
        outside = scores[(scores < lowest) | (scores > highest)]
        if len(outside):
            raise EvaluationError(
                f"a sample scores {float(outside[0]):g}, outside of {lowest:g} to {highest:g}; state the range: "
                "early_stopping=EarlyStopping(confidence, lowest, highest)"
            )


class _Bets:
    """On numbers from 0 to 1, drawn from `total` of them: that their mean is above `mean`.

    Args:
        total: how many there are.
        mean: that is in question.
        confidence: that is enough.
    """

    def __init__(self, total: int, mean: float, confidence: float) -> None:
        self.count = 0
        self.are_won = False
        self._total, self._mean = total, mean
        self._enough = -math.log(1 - confidence)
        self._sum = self._squares = 0.0
        self._wealth = 0.0  # its logarithm

    def place(self, x: Tensor) -> None:
        """Bet on further numbers, fp64 [n]."""
        if not len(x):
            return
        before = self.count + torch.arange(len(x), dtype=torch.float64)
        sums = self._sum + x.cumsum(0) - x
        squares = self._squares + x.square().cumsum(0) - x.square()
        left = (self._total * self._mean - sums) / (self._total - before)
        gains = 1 + self._stakes(left.clamp(1e-9, 1.0), sums, squares, before) * (x - left)
        wealth = self._wealth + gains.clamp_min(1e-300).log().cumsum(0)
        # Where nothing is left of the mean no number that is to come can change that it is exceeded.
        self.are_won = self.are_won or bool((left < 0).any()) or float(wealth.max()) >= self._enough
        self.count += len(x)
        self._sum, self._squares = self._sum + float(x.sum()), self._squares + float(x.square().sum())
        self._wealth = float(wealth[-1])

    def _stakes(self, left: Tensor, sums: Tensor, squares: Tensor, before: Tensor) -> Tensor:
        """On each number by those before it: what makes wealth grow fastest, if these are typical.

        Edge over variance plus squared edge (Kelly, 1956, to the second order); one number of mean 1/2 and variance 1/4
        is counted beforehand.
        """
        mean = (0.5 + sums) / (before + 1)
        variance = (0.25 + squares - 2 * mean * sums + before * mean.square()) / (before + 1)
        edge = mean - left
        stake = edge / (variance.clamp_min(1e-12) + edge.square())
        return stake.clamp_min(0).minimum(_LARGEST_BET / left)
