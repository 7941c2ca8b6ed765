"""The loop: a strategy proposes, the model takes the configuration, the user's function evaluates."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from subbyte.errors import EvaluationError
from subbyte.tuning.accuracy import Metrics, read_metrics
from subbyte.tuning.candidate import Candidate, Encoding
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.study import Record, Study
from subbyte.tuning.trial import Trial

_TRIES = 3  # of the float model
_REPEATED = 1000  # proposals in a row that are known: the strategy has nothing new

Evaluate = Callable[[Any], Any]
Watch = Callable[[Sequence[Trial]], None]


@dataclass
class Limits:
    """When a search ends.

    Args:
        max_trials: at most; those that an earlier run of the same study made count.
        timeout: seconds of this run; None is no limit.
        first_met: end with the first trial that is good enough.
    """

    max_trials: int
    timeout: float | None = None
    first_met: bool = False
    started: float = field(default_factory=time.monotonic)

    def are_reached(self, trials: Sequence[Trial]) -> bool:
        """Whether there is to be no further trial; one is always made."""
        if not trials:
            return False
        late = self.timeout is not None and time.monotonic() - self.started >= self.timeout
        return late or len(trials) >= self.max_trials or (self.first_met and any(trial.met for trial in trials))


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


@dataclass
class Loop:
    """Tries candidates, each once.

    Args:
        search: what is wanted.
        evaluate: the user's function.
        baseline: the metrics of the float model.
        study: where trials are kept.
        limits: when to end.
        watch: told of all trials after each.
    """

    search: Search
    evaluate: Evaluate
    baseline: Metrics
    study: Study
    limits: Limits
    watch: Watch = lambda trials: None
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._encoding = Encoding(self.search.space.alternatives)
        self._known = {record.key: record for record in self.study.records()}
        self._done: dict[str, Trial] = {}

    def run(self, proposals: Proposals) -> None:
        """Until the strategy has no more to propose or a limit is reached."""
        results: Sequence[Trial] | None = None
        repeated = 0
        while not self.limits.are_reached(self.trials) and repeated < _REPEATED:
            try:
                batch = next(proposals) if results is None else proposals.send(results)
            except StopIteration:
                return
            before, found = len(self.trials), []
            for candidate in batch:
                if self.limits.are_reached(self.trials):
                    return
                found.append(self._trial(candidate))
            repeated = repeated + 1 if len(self.trials) == before else 0
            results = found

    def _trial(self, candidate: Candidate) -> Trial:
        key = self._encoding.encode(candidate)
        if key not in self._done:
            objectives = self.search.objectives(candidate.config)
            record = self._known.get(key)
            kept = record is not None
            record = record or self._tried(key, candidate)
            trial = self._judged(len(self.trials), candidate, record, objectives)
            self._done[key] = trial
            self.trials.append(trial)
            if not kept:
                self.study.add(record, trial)
            self.watch(self.trials)
        return self._done[key]

    def _tried(self, key: str, candidate: Candidate) -> Record:
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

    def _judged(self, number: int, candidate: Candidate, record: Record, objectives: dict[str, float]) -> Trial:
        accuracy, goal = self.search.accuracy, self.search.goal
        loss, problem = float("inf"), record.problem
        if not problem:
            try:
                loss = accuracy.loss(record.metrics, self.baseline)
            except EvaluationError as error:  # of an earlier run
                problem = str(error)
        met = not problem and loss <= accuracy.max_loss and goal.within(objectives)
        return Trial(
            number, candidate.config, {} if problem else record.metrics, loss, objectives,
            goal.cost(objectives, self.search.of_float), met, candidate.recovered, record.seconds, record.evaluation,
            problem,
        )  # fmt: skip
