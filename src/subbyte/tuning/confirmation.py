"""A second evaluation, on other data, that decides among the models that a search would choose."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from subbyte.tuning.acceptance import loss_interval
from subbyte.tuning.accuracy import Evaluated, read_evaluation
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.evaluation import Evaluate, check_same_samples, evaluate_float, printable
from subbyte.tuning.search import Search
from subbyte.tuning.sequences import passed
from subbyte.tuning.trial import Trial

_MOST = 5  # models of each sequence that are evaluated
_ANY = 0.9  # confidence where the evaluation returns numbers, of which none has one


@dataclass(frozen=True)
class Confirmation:
    """Evaluates finalists.

    Args:
        search: that makes their models.
        evaluate: the second evaluation.
        of_float: what it returned for the float model.
    """

    search: Search
    evaluate: Evaluate
    of_float: Evaluated

    @property
    def samples(self) -> int | None:
        """Number of samples that it gives scores of; None if it returns numbers."""
        scores = self.of_float.scores
        return None if scores is None else min(len(each) for each in scores.values())

    def decided(self, trials: Sequence[Trial], expected: Sequence[Trial]) -> list[Trial]:
        """Return all trials with the verdict on those that the search takes for good enough.

        Args:
            trials: as the search judged them, by their numbers.
            expected: the same with the losses that are expected of this evaluation.
        """
        found: dict[int, Evaluated | str] = {}
        judged: dict[int, Trial] = {}

        def passes(trial: Trial, confidence: float) -> bool:
            if trial.number not in found:
                found[trial.number] = self._evaluated(trial)
            judged[trial.number] = self._judged(trials[trial.number], found[trial.number], confidence)
            return judged[trial.number].met

        confidence = self.search.accuracy.confidence or _ANY
        verdicts = passed([trial for trial in expected if trial.met], confidence, passes, _MOST)
        final = {number: judged.get(number, trials[number]) for number in verdicts}
        return [
            replace(final[trial.number], met=verdicts[trial.number], confirmed=verdicts[trial.number])
            if trial.number in verdicts
            else trial
            for trial in trials
        ]

    def _evaluated(self, trial: Trial) -> Evaluated | str:
        """Return what the evaluation returned, or the problem."""
        try:
            model = self.search.realized(Candidate(trial.config, trial.recovery), in_time=False)
            found = read_evaluation(self.evaluate(model))
            check_same_samples(found.scores, self.of_float.scores)
            self.search.accuracy.loss(found.metrics, self.of_float.metrics)
        except Exception as error:  # the user's own code may raise anything: this model is not confirmed
            return f"confirm: {printable(error)}"
        finally:
            self.search.model.check_intact()
        return found

    def _judged(self, trial: Trial, found: Evaluated | str, confidence: float) -> Trial:
        if isinstance(found, str):
            return replace(trial, problem=found, met=False)
        accuracy, reference = self.search.accuracy, self.of_float.scores
        loss = accuracy.loss(found.metrics, self.of_float.metrics)
        if found.scores is None or reference is None or accuracy.confidence is None:
            return replace(trial, estimate=loss, met=loss <= accuracy.max_loss)
        interval = loss_interval(accuracy, found.scores, reference, confidence)
        return replace(trial, estimate=loss, interval=interval, met=interval.high <= accuracy.max_loss)


def confirmation_of(search: Search, evaluate: Evaluate, float_model: Any) -> Confirmation:
    """Evaluate the float model and return what evaluates the finalists.

    Raises:
        EvaluationError: the evaluation replaced layers or tensors of the model, or returned no metric.
        TuningError: the tolerable loss has no meaning for this evaluation.
        Exception: whatever the evaluation raised, the third time in a row.
    """
    of_float = evaluate_float(evaluate, float_model, search.model)
    search.accuracy.check(of_float.metrics)
    return Confirmation(search, evaluate, of_float)
