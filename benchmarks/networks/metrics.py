"""How good a model is, and by how much two models differ on the same samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_RESAMPLES = 1000
_IN_95_PERCENT = 1.96  # standard errors


@dataclass(frozen=True)
class Change:
    """The difference of a metric between two models.

    Args:
        value: of the difference.
        error: its standard error, from the differences of the samples.
    """

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """In which the difference lies with 95 % confidence."""
        return self.value - _IN_95_PERCENT * self.error, self.value + _IN_95_PERCENT * self.error


def average(changes: Sequence[Change]) -> Change:
    """Of several seeds; its error is the mean of theirs, which is the largest it can be, whatever they share."""
    count = len(changes)
    return Change(sum(change.value for change in changes) / count, sum(change.error for change in changes) / count)


class Metric(ABC):
    """A figure for a model; what a model gave for each sample is two numbers.

    Args:
        name: with its unit.
        higher_is_better: else lower is.
        digits: to print after the point.
    """

    name: str
    higher_is_better: bool
    digits: int

    @abstractmethod
    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Two numbers for each sample, fp64 [samples, 2]."""

    @abstractmethod
    def of_samples(self, samples: Tensor) -> float:
        """The metric, from the numbers of all samples."""

    @abstractmethod
    def error_of_change(self, samples: Tensor, reference: Tensor) -> float:
        """The standard error of the metric's difference between two models, which saw the same samples."""


@dataclass(frozen=True)
class Mean(Metric):
    """Of each sample a sum and how many figures are in it; the metric is the total over the total count."""

    name: str
    higher_is_better: bool
    digits: int
    sums: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack(self.sums(outputs, targets), 1)

    def of_samples(self, samples: Tensor) -> float:
        return float(samples[:, 0].sum() / samples[:, 1].sum())

    def error_of_change(self, samples: Tensor, reference: Tensor) -> float:
        difference, counts = samples[:, 0] - reference[:, 0], samples[:, 1]
        # Samples may hold unequal counts (tokens of a story): the error of a ratio.
        residual = difference - difference.sum() / counts.sum() * counts
        n = len(residual)
        return float((residual.square().sum() / (n - 1) * n).sqrt() / counts.sum())


@dataclass(frozen=True)
class Spearman(Metric):
    """100 times the rank correlation of what the model says of each sample with what is true of it.

    It is no mean over samples, so its error is bootstrapped (Efron, 1979): samples are drawn again with replacement,
    the same for both models.
    """

    name: str
    higher_is_better: bool
    digits: int
    pairs: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack(self.pairs(outputs, targets), 1)

    def of_samples(self, samples: Tensor) -> float:
        return float(_rank_correlation(samples[:, 0], samples[:, 1]))

    def error_of_change(self, samples: Tensor, reference: Tensor) -> float:
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(len(samples), (_RESAMPLES, len(samples)), generator=generator)
        of_both = [_rank_correlation(each[drawn, 0], each[drawn, 1]) for each in (samples, reference)]
        return float((of_both[0] - of_both[1]).std())


def _rank_correlation(x: Tensor, y: Tensor) -> Tensor:
    """[..., samples] -> [...], in points."""
    x, y = (ranks - ranks.mean(-1, keepdim=True) for ranks in (_ranks(x), _ranks(y)))
    return 100 * (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def _ranks(x: Tensor) -> Tensor:
    """From 1; equal values share the mean of theirs."""
    x = x.contiguous()
    ordered = x.sort(-1).values
    below, up_to = torch.searchsorted(ordered, x), torch.searchsorted(ordered, x, side="right")
    return (below + up_to + 1).double() / 2


@dataclass(frozen=True)
class Judged:
    """What a model gave on the test data.

    Args:
        metric: it is judged by.
        samples: two numbers for each, fp64 [samples, 2].
    """

    metric: Metric
    samples: Tensor

    @property
    def value(self) -> float:
        return self.metric.of_samples(self.samples)

    def change_from(self, other: "Judged") -> Change:
        """The difference of the metrics, paired sample by sample."""
        error = self.metric.error_of_change(self.samples, other.samples)
        return Change(self.value - other.value, error)
