"""What comes of a candidate: its model is made, and the user's function evaluates it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from subbyte.adaptor import TunableModel
from subbyte.errors import TuningError
from subbyte.tuning.accuracy import METRIC, Metrics, read_metrics
from subbyte.tuning.candidate import Candidate, Encoding
from subbyte.tuning.early_stopping import SequentialTest, Verdict
from subbyte.tuning.scores import read_scores
from subbyte.tuning.search import Search
from subbyte.tuning.study import Record

_TRIES = 3  # of the float model

Evaluate = Callable[[Any], Any]
Found = TypeVar("Found")


def evaluate_float(evaluate: Evaluate, model: Any, tunable: TunableModel) -> dict[str, float]:
    """Return the metrics of the float model, whose values are then what they were before.

    Args:
        evaluate: the user's function.
        model: float.
        tunable: made from it.

    Raises:
        EvaluationError: the evaluation replaced layers or tensors of the model.
        Exception: whatever the evaluation raised, the third time in a row.
    """
    return _retried(lambda: read_metrics(evaluate(model)), tunable)


def scores_of_float(evaluate: Evaluate, model: Any, tunable: TunableModel) -> Tensor:
    """Return the float model's score for each sample, fp64 [samples]; arguments as for `evaluate_float`.

    Raises:
        TuningError: the evaluation yields none.
        EvaluationError: the evaluation replaced layers or tensors of the model.
        Exception: whatever the evaluation raised, the third time in a row.
    """

    def scores() -> Tensor:
        given = evaluate(model)
        if not isinstance(given, Iterator):
            raise TuningError(
                f"early_stopping needs an evaluation that yields, for each batch, its samples' scores; this one "
                f"returns {type(given).__name__}: use yield, or return an iterator"
            )
        return torch.cat([torch.zeros(0, dtype=torch.float64), *read_scores(given)])

    return _retried(scores, tunable)


def _retried(evaluated: Callable[[], Found], tunable: TunableModel) -> Found:
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            return evaluated()
        except TuningError:
            raise
        except Exception:  # the user's own code may raise anything, and may not do so again
            if not tries_left:
                raise
        finally:
            tunable.restore_float()


def _printable(text: str) -> str:
    """Without the colours and other control characters that terminals take and pages do not."""
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


@dataclass(frozen=True)
class Evaluation:
    """All that a worker needs to try a candidate; it can be sent to another process.

    Args:
        search: whose model takes the configuration.
        evaluate: the user's function.
        baseline: the metrics of the float model.
        test: that ends an evaluation once it is certain that the loss is too much; None looks at all samples.
    """

    search: Search
    evaluate: Evaluate
    baseline: Metrics
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
        """
        started, evaluation = time.perf_counter(), 0.0
        metrics: Metrics = {}
        verdict: Verdict | None = None
        problem = ""
        try:
            model = self.search.realized(candidate)
            began = time.perf_counter()
            try:
                metrics, verdict = self._evaluated(model)
            finally:
                evaluation = time.perf_counter() - began
            self.search.accuracy.loss(metrics, self.baseline)
        except Exception as error:  # the user's own code may raise anything: the trial has failed, the search goes on
            metrics, verdict, problem = {}, None, _printable(f"{type(error).__name__}: {error}")
        self.search.model.check_intact()
        record = Record(key, metrics, time.perf_counter() - started, evaluation, problem)
        return record if verdict is None else replace(record, samples=verdict.samples)

    def _evaluated(self, model: Any) -> tuple[Metrics, Verdict | None]:
        if self.test is None:
            return read_metrics(self.evaluate(model)), None
        verdict = self.test.judge(self.evaluate(model))
        return {METRIC: verdict.metric}, verdict

    def valued(self, record: Record, candidate: Candidate) -> Record:
        """With loss and cost, which the process that runs the search counts: a worker may be another machine."""
        if record.problem:
            return record
        loss = self.search.accuracy.loss(record.metrics, self.baseline)
        return replace(record, values=(loss, self.search.cost(candidate.config)))
