"""What comes of a candidate: its model is made, and the user's function evaluates it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from subbyte.tuning.accuracy import Metrics, read_metrics
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.search import Search
from subbyte.tuning.study import Record

_TRIES = 3  # of the float model

Evaluate = Callable[[Any], Any]


def evaluate_float(evaluate: Evaluate, model: Any) -> dict[str, float]:
    """The metrics of the float model.

    Raises:
        Exception: whatever the evaluation raised, the third time in a row.
    """
    for _ in range(_TRIES - 1):
        try:
            return read_metrics(evaluate(model))
        except Exception:  # the user's own code may raise anything, and may not do so again
            continue
    return read_metrics(evaluate(model))


@dataclass(frozen=True)
class Evaluation:
    """All that a worker needs to try a candidate; it can be sent to another process.

    Args:
        search: whose model takes the configuration.
        evaluate: the user's function.
        baseline: the metrics of the float model.
    """

    search: Search
    evaluate: Evaluate
    baseline: Metrics

    def record(self, key: str, candidate: Candidate) -> Record:
        """Try a candidate; whatever goes wrong is its problem, in the record."""
        started, evaluation = time.perf_counter(), 0.0
        metrics: Metrics = {}
        problem = ""
        try:
            model = self.search.realized(candidate)
            began = time.perf_counter()
            try:
                metrics = read_metrics(self.evaluate(model))
            finally:
                evaluation = time.perf_counter() - began
            self.search.accuracy.loss(metrics, self.baseline)
        except Exception as error:  # the user's own code may raise anything: the trial has failed, the search goes on
            metrics, problem = {}, f"{type(error).__name__}: {error}"
        return Record(key, metrics, time.perf_counter() - started, evaluation, problem)

    def valued(self, record: Record, candidate: Candidate) -> Record:
        """With loss and cost, which the process that runs the search counts: a worker may be another machine."""
        if record.problem:
            return record
        loss = self.search.accuracy.loss(record.metrics, self.baseline)
        return replace(record, values=(loss, self.search.cost(candidate.config)))
