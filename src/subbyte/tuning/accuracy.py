"""How good a model is, and how much worse than the float one."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, get_args

from torch import Tensor

from subbyte.errors import EvaluationError, TuningError, nearest
from subbyte.tuning.paired import PairedLoss, paired_loss, weighted_loss
from subbyte.tuning.scores import Scores, all_scores, is_scores, scores_of

Metrics = Mapping[str, float]
LossUnit = Literal["relative", "absolute"]
METRIC = "metric"  # the name of one that has none
_LARGE = 0.5  # share of the metric: to lose more is hardly meant


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation returned.

    Args:
        metrics: numbers by name; of scores, their means.
        scores: scores of the samples by the metric's name; None if the evaluation returned numbers.
    """

    metrics: dict[str, float]
    scores: Scores | None = None


def read_evaluation(value: Any) -> Evaluated:
    """Read what an evaluation returned: one number, a score for each sample, either of them by name, or a generator.

    Raises:
        EvaluationError: a metric or score is no finite number, there is none, or some metrics are numbers and others
            scores.
    """
    if isinstance(value, Iterator):
        return of_scores({METRIC: all_scores(value)})
    given = value if isinstance(value, Mapping) else {METRIC: value}
    if not given:
        raise EvaluationError("the evaluation returned no metric; return a number, or a dict of numbers by name")
    scored = [str(name) for name, each in given.items() if is_scores(each)]
    if not scored:
        return Evaluated({str(name): _number(name, each) for name, each in given.items()})
    if len(scored) < len(given):
        raise EvaluationError(
            f"the evaluation returned scores of samples for {scored} and numbers for the other metrics; return one "
            "number for each metric, or scores for each"
        )
    return of_scores({str(name): scores_of(each) for name, each in given.items()})


def of_scores(scores: Scores) -> Evaluated:
    """Return scores with their means as metrics."""
    return Evaluated({name: float(each.mean()) for name, each in scores.items()}, scores)


def _number(name: Any, value: Any) -> float:
    shown = f"metric {name!r}" if name != METRIC else "the metric"
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    elif getattr(value, "size", None) == 1 and hasattr(value, "item"):
        value = value.item()  # numpy's scalars
    if not isinstance(value, Real) or isinstance(value, bool):
        raise EvaluationError(
            f"{shown} must be a number, and the evaluation returned {type(value).__name__}: {value!r}"
        )
    if not math.isfinite(value):
        raise EvaluationError(f"{shown} is {float(value)}, which is no finite number")
    return float(value)


def _are_weights(given: Sequence[Any]) -> bool:
    numbers = all(isinstance(each, Real) and math.isfinite(each) and float(each) >= 0 for each in given)
    return numbers and (not given or sum(given) > 0)


@dataclass(frozen=True)
class Accuracy:
    """What a loss of accuracy is.

    Args:
        max_loss: how much worse than the float model one may be.
        criterion: whether losses are shares of the float model's metrics, or in their own units.
        higher_is_better: of all metrics, or of each by name.
        weights: of several metrics: their weighted mean loss counts; without weights the worst of all.
        confidence: with which the loss must be shown to be tolerable, where the evaluation gives scores of samples;
            None takes the loss for what was measured.

    Raises:
        TuningError: a negative loss, which would ask for more than the float model gives, or weights that are not.
    """

    max_loss: float = 0.01
    criterion: LossUnit = "relative"
    higher_is_better: bool | Mapping[str, bool] = True
    weights: Mapping[str, float] = field(default_factory=dict)
    confidence: float | None = 0.9

    def __post_init__(self) -> None:
        if not isinstance(self.max_loss, Real) or isinstance(self.max_loss, bool) or not math.isfinite(self.max_loss):
            raise TuningError(f"max_loss must be a number, not {self.max_loss!r}")
        if self.max_loss < 0:
            raise TuningError(
                f"max_loss is {self.max_loss}, which asks for a model better than the float one; give 0 or more"
            )
        better = self.higher_is_better
        if self.criterion == "relative" and self.max_loss > 1 and better is True:
            raise TuningError(
                f"max_loss={self.max_loss:g} would let more than all of the metric be lost: it is a share, and 0.05 is "
                "five percent; for a loss in the metric's own unit give criterion='absolute'"
            )
        kinds = get_args(LossUnit)
        if self.criterion not in kinds:
            hint = nearest(str(self.criterion), kinds)
            raise TuningError(f"criterion {self.criterion!r} is unknown{hint} (known: {', '.join(kinds)})")
        if any(not isinstance(each, bool) for each in (better.values() if isinstance(better, Mapping) else [better])):
            raise TuningError(
                f"higher_is_better is True, False, or one of them for each metric by name, not {better!r}"
            )
        confidence = self.confidence
        known = isinstance(confidence, Real) and not isinstance(confidence, bool) and 0.5 <= confidence < 1
        if confidence is not None and not known:
            raise TuningError(
                f"confidence must be a number from 0.5 to below 1, as in 0.9, or None for no test, not {confidence!r}"
            )
        if not isinstance(self.weights, Mapping) or not _are_weights(list(self.weights.values())):
            raise TuningError(
                f"weights of metrics must be numbers by name of which one is above zero, not {self.weights!r}"
            )

    def loss(self, metrics: Metrics, baseline: Metrics) -> float:
        """How much worse than the float model, as `max_loss` counts it; below zero where it is better.

        Raises:
            EvaluationError: the evaluation returned other metrics than of the float model.
        """
        if set(metrics) != set(baseline):
            raise EvaluationError(
                f"the evaluation returned the metrics {sorted(metrics)}, and of the float model {sorted(baseline)}"
            )
        losses = {name: self._loss(name, metrics[name], baseline[name]) for name in baseline}
        if not self.weights:
            return max(losses.values())
        return sum(w * losses[name] for name, w in self.weights.items()) / sum(self.weights.values())

    def paired(self, scores: Scores, reference: Scores) -> list[PairedLoss]:
        """Return the losses on the same samples that must all be tolerable: of each metric, or their weighted mean."""
        losses = {
            name: paired_loss(
                scores[name], reference[name],
                relative=self.criterion == "relative", higher_is_better=self.is_higher_better(name),
            )
            for name in reference
        }  # fmt: skip
        return [weighted_loss(losses, self.weights)] if self.weights else list(losses.values())

    def warn(self) -> None:
        """Warn about a tolerable loss that was probably meant as a percentage."""
        if self.criterion == "relative" and self.max_loss >= _LARGE:
            warnings.warn(
                f"max_loss={self.max_loss:g} lets a model lose {self.max_loss:.0%} of the float model's metric: it is "
                f"a share, and {self.max_loss / 100:g} is {self.max_loss:g} percent; for a loss in the metric's own "
                "unit give criterion='absolute'",
                stacklevel=2,
            )

    def _loss(self, name: str, value: float, reference: float) -> float:
        loss = reference - value if self.is_higher_better(name) else value - reference
        return loss / abs(reference) if self.criterion == "relative" else loss

    def is_higher_better(self, name: str) -> bool:
        """Of a metric."""
        better = self.higher_is_better
        return better[name] if isinstance(better, Mapping) else better

    def unit(self, baseline: Metrics) -> float:
        """What losses are counted in: 1 where they are shares, else about as much as the float model's metrics are."""
        if self.criterion == "relative" or not baseline:
            return 1.0
        sizes = [abs(value) for value in baseline.values()]
        return max(sum(sizes) / len(sizes), self.max_loss) or 1.0

    def tolerable(self, reference: float) -> float:
        """How much worse than the float model's a metric may be, in its own units."""
        return self.max_loss * abs(reference) if self.criterion == "relative" else self.max_loss

    def check(self, baseline: Metrics) -> None:
        """Refuse a criterion that has no meaning for the float model's metrics.

        Raises:
            TuningError: a share of zero is asked for, or of a metric that there is not.
        """
        for given, what in ((self.weights, "weights"), (self.higher_is_better, "higher_is_better")):
            if isinstance(given, Mapping) and given and (unknown := set(given) - set(baseline)):
                raise TuningError(f"{what} names {sorted(unknown)}, and the evaluation returns {sorted(baseline)}")
        if isinstance(self.higher_is_better, Mapping) and (missing := set(baseline) - set(self.higher_is_better)):
            raise TuningError(
                f"higher_is_better says nothing of {sorted(missing)}; name every metric, or give one bool"
            )
        zero = [name for name, value in baseline.items() if value == 0]
        if self.criterion == "relative" and zero:
            raise TuningError(
                f"the float model's {zero[0]} is 0, of which no share can be lost; ask for an absolute loss"
            )
