"""What comes of a candidate: its model is made, and the user's function evaluates it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from subbyte.adaptor import TunableModel
from subbyte.errors import EvaluationError, TuningError
from subbyte.tuning.accuracy import METRIC, Evaluated, Metrics, of_scores, read_evaluation
from subbyte.tuning.candidate import Candidate, Encoding
from subbyte.tuning.early_stopping import SequentialTest
from subbyte.tuning.scores import Scores, pack
from subbyte.tuning.search import Search, TimeIsOverError
from subbyte.tuning.study import Record

_TRIES = 3  # of the float model

Evaluate = Callable[[Any], Any]


def evaluate_float(evaluate: Evaluate, model: Any, tunable: TunableModel, *, by_batch: bool = False) -> Evaluated:
    """Evaluate the float model, whose values are then what they were before.

    Args:
        evaluate: the user's function.
        model: float.
        tunable: made from it.
        by_batch: whether the evaluation must yield scores batch by batch.

    Raises:
        TuningError: it must, and does not.
        EvaluationError: the evaluation replaced layers or tensors of the model.
        Exception: whatever the evaluation raised, the third time in a row.
    """
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            given = evaluate(model)
            if by_batch and not isinstance(given, Iterator):
                raise TuningError(
                    f"early_stopping needs an evaluation that yields, for each batch, its samples' scores; this one "
                    f"returns {type(given).__name__}: use yield, or return an iterator"
                )
            return read_evaluation(given)
        except TuningError:
            raise
        except Exception:  # the user's own code may raise anything, and may not do so again
            if not tries_left:
                raise
        finally:
            tunable.restore_float()


def check_same_samples(scores: Scores | None, reference: Scores | None) -> None:
    """Refuse an evaluation that does not give the same kind of result, on the same samples, as for the float model.

    Raises:
        EvaluationError: it gives scores for one model alone, or not as many.
    """
    if (scores is None) != (reference is None):
        now, then = (
            ("numbers", "scores of samples")[scores is not None],
            ("numbers", "scores of samples")[scores is None],
        )
        raise EvaluationError(f"the evaluation returned {now}, and {then} for the float model; return the same kind")
    for name, each in (reference or {}).items():
        found = (scores or {}).get(name)
        if found is not None and len(found) != len(each):
            raise EvaluationError(f"the evaluation returned {len(found)} scores, and {len(each)} for the float model")


def printable(error: Exception) -> str:
    """Return an error without the colours and other control characters that terminals take and pages do not."""
    return "".join(each if each.isprintable() or each == "\n" else " " for each in f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Evaluation:
    """All that a worker needs to try a candidate; it can be sent to another process.

    Args:
        search: whose model takes the configuration.
        evaluate: the user's function.
        baseline: the metrics of the float model.
        reference: the scores of the float model, where the evaluation gives scores.
        test: that ends an evaluation once it is certain that the loss is too much; None looks at all samples.
    """

    search: Search
    evaluate: Evaluate
    baseline: Metrics
    reference: Scores | None = None
    test: SequentialTest | None = None

    @property
    def encoding(self) -> Encoding:
        """Of the candidates that are tried so."""
        stopping = f"{self.test.stopping}; {self.search.accuracy}" if self.test is not None else ""
        return Encoding(self.search.space.alternatives, self.search.recovery, stopping)

    def record(self, key: str, candidate: Candidate) -> Record:
        """Try a candidate; whatever goes wrong is its problem, in the record.

        Raises:
            ModelError: the evaluation has made the model unfit for further trials.
            TimeIsOverError: the time is over before the model is recovered.
        """
        started, evaluation = time.perf_counter(), 0.0
        found, samples, problem = Evaluated({}), None, ""
        try:
            model = self.search.realized(candidate)
            began = time.perf_counter()
            try:
                found, samples = self._evaluated(model)
            finally:
                evaluation = time.perf_counter() - began
            self.search.accuracy.loss(found.metrics, self.baseline)
        except TimeIsOverError:
            raise
        except Exception as error:  # the user's own code may raise anything: the trial has failed, the search goes on
            found, samples, problem = Evaluated({}), None, printable(error)
        self.search.model.check_intact()
        scores = pack(found.scores) if found.scores is not None else ""
        return Record(key, found.metrics, time.perf_counter() - started, evaluation, problem, None, samples, scores)

    def _evaluated(self, model: Any) -> tuple[Evaluated, int | None]:
        """Return what was evaluated, and of how many samples if not of all."""
        if self.test is None:
            found = read_evaluation(self.evaluate(model))
            check_same_samples(found.scores, self.reference)
            return found, None
        verdict = self.test.judge(self.evaluate(model))
        return replace(of_scores({METRIC: verdict.scores}), metrics={METRIC: verdict.metric}), verdict.samples

    def valued(self, record: Record, candidate: Candidate) -> Record:
        """With loss and cost, which the process that runs the search counts: a worker may be another machine."""
        if record.problem:
            return record
        loss = self.search.accuracy.loss(record.metrics, self.baseline)
        return replace(record, values=(loss, self.search.cost(candidate.config)))
