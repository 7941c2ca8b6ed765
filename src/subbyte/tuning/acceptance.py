"""Acceptance of losses: by a test on held-out samples, or an estimate from trials with similar deviations."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from subbyte.tuning.accuracy import Accuracy, Metrics, of_scores
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.estimate import ModelDeviations, estimated_loss
from subbyte.tuning.paired import Interval, samples_needed, worst
from subbyte.tuning.scores import Scores, unpack
from subbyte.tuning.search import Search
from subbyte.tuning.sequences import first_confidence, passed
from subbyte.tuning.study import Record
from subbyte.tuning.trial import Trial

HELD_OUT = 0.75  # share of the samples that take no part in the search
_NEAR = 10.0  # Times the tolerable loss. Trials with a larger loss are ignored: they do not predict tolerable ones.
_LEAST = 1e-3  # Lower limit of the tolerable loss in this rule, as a fraction of the metric, for max_loss=0.


@dataclass(frozen=True)
class RecordedTrial:
    """A trial as the strategy saw it, and what the study keeps of it."""

    trial: Trial
    record: Record

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.trial.config, self.trial.recovery)


class Acceptance(ABC):
    """Interface of a rule that gives a trial's loss to the strategy, and judges all trials after the search."""

    @abstractmethod
    def loss(self, candidate: Candidate, record: Record, tried: Sequence[RecordedTrial]) -> float:
        """Return the loss by which the strategy goes, in the unit of `max_loss`.

        Args:
            candidate: that was tried.
            record: what came of it; not of a failure.
            tried: all trials before.
        """

    @abstractmethod
    def decided(self, tried: Sequence[RecordedTrial]) -> list[Trial]:
        """Return all trials with their final losses and verdicts."""

    @abstractmethod
    def expected(self, trials: Sequence[Trial], tried: Sequence[RecordedTrial]) -> list[Trial]:
        """Return the trials, each with the loss by which `confirm` orders them.

        Args:
            trials: as they are judged in the end.
            tried: the same as the strategy saw them.
        """

    def is_usable(self, record: Record) -> bool:
        """Return whether a stored record can be judged by this rule. If not, its candidate is tried again."""
        return True


def is_unchanged(candidate: Candidate) -> bool:
    """Return whether a candidate is the float model itself, which loses nothing."""
    return not candidate.recovered and all(config.is_unchanged for config in candidate.config.op.values())


def loss_interval(
    accuracy: Accuracy, scores: Scores, reference: Scores, confidence: float, samples: int | None = None
) -> Interval:
    """Return the loss on the same samples, with its bounds; of several losses the one with the highest upper bound.

    Args:
        accuracy: what a loss is.
        scores: of a model.
        reference: of the float model, on the same samples.
        confidence: of each bound.
        samples: number of samples for which the bounds are predicted. Default: the number that there are.
    """
    return worst([loss.interval(confidence, samples) for loss in accuracy.paired(scores, reference)])


class PairedAcceptance(Acceptance):
    """Rule that compares a model with the float model sample by sample.

    The search uses a random quarter of the samples. The strategy sees the upper bound of the loss that the held-out
    samples are expected to give. After the search, the held-out samples decide. They had no influence on the choice,
    so the chosen model is not favoured by chance.

    Args:
        accuracy: what a loss is, and how much of it is tolerable.
        confidence: with which that must be shown.
        reference: the float model's scores.
        seed: chooses the samples.
        confirmed: number of samples of another evaluation that decides; all samples then lead the search. None: those
            that are held out decide.
    """

    def __init__(
        self, accuracy: Accuracy, confidence: float, reference: Scores, seed: int, confirmed: int | None = None
    ) -> None:
        self._accuracy, self._confidence, self._reference = accuracy, confidence, reference
        self._baseline = of_scores(reference).metrics
        samples = min(len(each) for each in reference.values())
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
        held_out = round(HELD_OUT * samples) if confirmed is None else 0
        self._held_out, self._leading = order[:held_out], order[held_out:]
        self._deciding = held_out if confirmed is None else confirmed
        self._check(samples)

    def is_usable(self, record: Record) -> bool:
        counts = {name: len(each) for name, each in self._reference.items()}
        if record.scores and record.samples is None:
            return {name: len(each) for name, each in unpack(record.scores).items()} == counts
        return bool(record.problem or record.scores)

    def expected(self, trials: Sequence[Trial], tried: Sequence[RecordedTrial]) -> list[Trial]:
        return [each.trial for each in tried]

    def loss(self, candidate: Candidate, record: Record, tried: Sequence[RecordedTrial]) -> float:
        confidence = first_confidence(self._confidence)
        found = self._interval(candidate, record, confidence, self._leading, self._deciding)
        return found.high if found is not None else self._measured(record)

    def decided(self, tried: Sequence[RecordedTrial]) -> list[Trial]:
        if not len(self._held_out):
            return [self._judged(each, None, None) for each in tried]
        intervals: dict[int, Interval] = {}

        def passes(trial: Trial, confidence: float) -> bool:
            each = tried[trial.number]
            found = self._interval(each.candidate, each.record, confidence, self._held_out, len(self._held_out))
            if found is not None:
                intervals[trial.number] = found
            return trial.samples is None and found is not None and found.high <= self._accuracy.max_loss

        verdicts = passed([each.trial for each in tried], self._confidence, passes)
        return [self._judged(each, intervals.get(each.trial.number), verdicts.get(each.trial.number)) for each in tried]

    def _judged(self, each: RecordedTrial, interval: Interval | None, verdict: bool | None) -> Trial:
        trial = each.trial
        if trial.failed:
            return trial
        met = trial.met if verdict is None else verdict
        return replace(trial, loss=self._measured(each.record), interval=interval, confirmed=verdict, met=met)

    def _measured(self, record: Record) -> float:
        return self._accuracy.loss(record.metrics, self._baseline)

    def _interval(
        self, candidate: Candidate, record: Record, confidence: float, part: Tensor, samples: int
    ) -> Interval | None:
        """Return the loss on a part of the samples; None if an evaluation that ended early came to none of them."""
        if is_unchanged(candidate):
            return Interval(0.0, 0.0, 0.0, samples)
        scores = unpack(record.scores)
        found = part[part < min(len(each) for each in scores.values())]
        if not len(found):
            return None
        scores, reference = ({name: each[found] for name, each in of.items()} for of in (scores, self._reference))
        return loss_interval(self._accuracy, scores, reference, confidence, samples)

    def _check(self, samples: int) -> None:
        """Warn if the samples are too few for any model to pass, even one with the float model's answers."""
        losses = self._accuracy.paired(self._reference, self._reference)
        most = self._accuracy.max_loss
        needed = max(samples_needed(each, most, first_confidence(self._confidence)) for each in losses)
        if needed > self._deciding or most == 0:
            share = samples / max(self._deciding, 1) if len(self._held_out) else 1
            enough = f"give at least {ceil(needed * share):,} samples" if most > 0 else "allow a loss above 0"
            warnings.warn(
                f"{self._deciding:,} samples cannot show with a confidence of {self._confidence:g} that a model loses "
                f"at most {most:g}, not even of one that answers all of them as the float model does; {enough}, a "
                "lower confidence, or confidence=None to go by what is measured",
                stacklevel=2,
            )


class EstimatedAcceptance(Acceptance):
    """Rule that estimates the loss of a trial from trials with a similar deviation.

    A measured metric has a random error, and the cheapest of many passing trials is partly the luckiest one. The
    deviation of the outputs on calibration data does not have this error. So the estimate is the trial's deviation
    times the loss per deviation of similar trials (`estimated_loss`), and at least the measured loss. Only trials
    with the same form of recovery are compared. Deviations are those of the configuration before recovery. If the
    deviation cannot be measured, the measured loss is used.

    Args:
        search: Search whose model measures the deviations.
        baseline: Metrics of the float model.
    """

    def __init__(self, search: Search, baseline: Metrics) -> None:
        self._accuracy, self._baseline = search.accuracy, baseline
        self._deviations = ModelDeviations(search)
        self._near = _NEAR * max(search.accuracy.max_loss, _LEAST * search.unit)

    def loss(self, candidate: Candidate, record: Record, tried: Sequence[RecordedTrial]) -> float:
        return self._estimate(candidate, record, tried, measure=False)

    def decided(self, tried: Sequence[RecordedTrial]) -> list[Trial]:
        return [self._judged(each, tried) for each in tried]

    def expected(self, trials: Sequence[Trial], tried: Sequence[RecordedTrial]) -> list[Trial]:
        return [trial if trial.estimate is None else replace(trial, loss=trial.estimate) for trial in trials]

    def _judged(self, each: RecordedTrial, tried: Sequence[RecordedTrial]) -> Trial:
        if each.trial.failed:
            return each.trial
        estimate = self._estimate(each.candidate, each.record, tried, measure=True)
        met = estimate <= self._accuracy.max_loss and each.trial.samples is None and each.trial.excess == 0
        return replace(each.trial, loss=self._measured(each.record), estimate=estimate, met=met)

    def _measured(self, record: Record) -> float:
        return self._accuracy.loss(record.metrics, self._baseline)

    def _estimate(
        self, candidate: Candidate, record: Record, tried: Sequence[RecordedTrial], *, measure: bool
    ) -> float:
        measured = self._measured(record)
        deviation = self._deviations.of(record.key, candidate.config, measure=measure)
        if measured > self._near or not deviation:
            return measured
        deviations, losses = [deviation], [measured]
        for each in tried:
            loss = float("inf") if each.trial.failed or each.record is record else self._measured(each.record)
            if loss <= self._near and each.trial.recovery == candidate.recovery:
                other = self._deviations.of(each.record.key, each.trial.config, measure=measure)
                deviations += [other] if other else []
                losses += [loss] if other else []
        return max(measured, estimated_loss(deviation, deviations, losses))
