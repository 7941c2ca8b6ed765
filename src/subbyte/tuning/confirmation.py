"""A second evaluation, on other data, that decides among the models that a search would choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from subbyte.tuning.accuracy import Evaluated, read_evaluation
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.criterion import passed_in_order, shown_loss
from subbyte.tuning.evaluation import Evaluate, check_same_samples, evaluate_float, printable
from subbyte.tuning.search import Search
from subbyte.tuning.trial import Trial

_MOST = 5  # models that are evaluated, the float model aside


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

    def decided(self, trials: Sequence[Trial], finalists: Sequence[Trial]) -> list[Trial]:
        """Return all trials with the verdict on the finalists.

        Args:
            trials: as the search judged them.
            finalists: trials that the search takes for good enough, from the one that seems to lose least to the
                cheapest. Of many, five are evaluated, evenly spaced.
        """
        found: dict[int, Trial] = {}

        def passes(trial: Trial) -> bool:
            found[trial.number] = self._evaluated(trial)
            return found[trial.number].confirmed is True

        chosen = _spaced(finalists)
        passed = passed_in_order(chosen, passes)
        trials = [found.get(trial.number, trial) for trial in trials]
        return [replace(trial, met=False, confirmed=False) if _is_unshown(trial, passed) else trial for trial in trials]

    def _evaluated(self, trial: Trial) -> Trial:
        accuracy = self.search.accuracy
        try:
            found = read_evaluation(self.evaluate(self.search.realized(Candidate(trial.config, trial.recovered))))
            check_same_samples(found.scores, self.of_float.scores)
            loss = accuracy.loss(found.metrics, self.of_float.metrics)
        except Exception as error:  # the user's own code may raise anything: this model is not confirmed
            return replace(trial, problem=f"confirm: {printable(error)}", confirmed=False, met=False)
        self.search.model.check_intact()
        interval = None
        if found.scores is not None and self.of_float.scores is not None and accuracy.confidence is not None:
            interval = shown_loss(accuracy, found.scores, self.of_float.scores, accuracy.confidence)
        confirmed = (loss if interval is None else interval.high) <= accuracy.max_loss
        return replace(trial, interval=interval, estimate=loss, confirmed=confirmed, met=confirmed)


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


def _spaced(finalists: Sequence[Trial]) -> list[Trial]:
    last = len(finalists) - 1
    if last < _MOST:
        return list(finalists)
    return [finalists[round(last * each / (_MOST - 1))] for each in range(_MOST)]


def _is_unshown(trial: Trial, passed: Mapping[int, bool]) -> bool:
    """Whether the test ended before it came to a trial."""
    return trial.confirmed is None and passed.get(trial.number) is False
