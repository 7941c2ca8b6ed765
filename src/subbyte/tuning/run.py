"""The loop: a strategy proposes, an executor tries, and what comes back is judged and sent to the strategy."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Literal

from subbyte.errors import EvaluationError, TuningError
from subbyte.tuning.acceptance import Acceptance, RecordedTrial
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.distributed import Executor
from subbyte.tuning.evaluation import Evaluation
from subbyte.tuning.finalists import MOST_FINALISTS, finalists
from subbyte.tuning.search import Proposals, TimeIsOverError
from subbyte.tuning.study import Record, Study
from subbyte.tuning.trial import Trial, best_of

_REPEATED = 1000  # proposals in a row that are known: the strategy has nothing new

Watch = Callable[[Sequence[Trial]], None]
Reason = Literal["strategy", "max_trials", "timeout", "good_enough"]


@dataclass
class Limits:
    """When a search ends.

    Args:
        max_trials: at most, in the whole study: those that an earlier run made count, with whichever strategy; those of
            other recovery methods, which are not taken over, do not.
        timeout: seconds of this run; None is no limit.
        first_met: end with the first trial that is good enough.

    Raises:
        TuningError: no trial is allowed, or a limit is no number.
    """

    max_trials: int
    timeout: float | None = None
    first_met: bool = False
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not isinstance(self.max_trials, Integral) or isinstance(self.max_trials, bool) or self.max_trials < 1:
            raise TuningError(f"max_trials must be a whole number above zero, not {self.max_trials!r}")
        timed = isinstance(self.timeout, Real) and not isinstance(self.timeout, bool)
        if self.timeout is not None and not (timed and self.timeout >= 0):
            raise TuningError(f"timeout must be a number of seconds, or None for no limit, not {self.timeout!r}")

    def is_late(self) -> bool:
        """Whether the time is over."""
        return self.timeout is not None and time.monotonic() - self.started >= self.timeout

    def reached(self, trials: Sequence[Trial]) -> Reason | None:
        """Return which limit allows no further trial; None if none does."""
        if self.first_met and any(trial.met for trial in trials):
            return "good_enough"
        if len(trials) >= self.max_trials:
            return "max_trials"
        return "timeout" if self.is_late() else None


@dataclass
class Loop:
    """Tries candidates, each once.

    Args:
        evaluation: of what is wanted.
        acceptance: says what trials lose, and which are accepted.
        study: where trials are kept.
        executor: tries what the study does not have.
        limits: when to end; of a study that has no trial one is always made.
        watch: told of all trials after each.
    """

    evaluation: Evaluation
    acceptance: Acceptance
    study: Study
    executor: Executor
    limits: Limits
    watch: Watch = lambda trials: None
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.search = self.evaluation.search
        self._encoding = self.evaluation.encoding
        records = {record.key: record for record in self.study.records()}
        self._known = {key: record for key, record in records.items() if self._can_be_judged(record)}
        self._done: dict[str, RecordedTrial] = {}
        self._best: Trial | None = None

    @property
    def tried(self) -> list[RecordedTrial]:
        """The trials as the strategy saw them, with what the study keeps of them."""
        return list(self._done.values())

    def _can_be_judged(self, record: Record) -> bool:
        return self._encoding.decode(record.key) is not None and self.acceptance.is_usable(record)

    def run(self, proposals: Proposals) -> Reason:
        """Until the strategy has no more to propose or a limit is reached; then recover the finalists in full.

        Finalists come on top of the trials that are allowed. At the end all else that the study has is taken in.

        Returns:
            why there were no further trials.
        """
        reason = self._run(proposals)
        if self.trials and reason != "timeout":
            self.limits = replace(self.limits, max_trials=self.limits.max_trials + MOST_FINALISTS, first_met=False)
            if self._run(finalists(self.search, self.trials)) == "timeout":
                reason = "timeout"
        if not self._known:
            self._tried([Candidate(self.search.space.widest())])  # a strategy that proposes nothing
        for key in [key for key in self._known if key not in self._done]:
            candidate = self._encoding.decode(key)
            if candidate is not None:
                self._judge(key, candidate)
        self._keep_best()
        return reason

    def _run(self, proposals: Proposals) -> Reason:
        results: list[Trial] | None = None
        repeated = 0
        while repeated < _REPEATED:
            if (reached := self._reached()) is not None:
                return reached
            before = len(self.trials)
            try:
                batch = next(proposals) if results is None else proposals.send(results)
                results = self._tried(batch)
            except StopIteration:
                return "strategy"
            except TimeIsOverError:
                return "timeout"
            if results is None:
                return self._reached() or "max_trials"
            repeated = repeated + 1 if len(self.trials) == before else 0
        return "strategy"

    def _reached(self) -> Reason | None:
        return self.limits.reached(self.trials) if self._known else None

    def _is_late(self) -> bool:
        return bool(self._known) and self.limits.is_late()

    def _tried(self, batch: Sequence[Candidate]) -> list[Trial] | None:
        """The trials of a batch; None where a limit was reached within it.

        Raises:
            TuningError: the strategy yielded something else.
        """
        if not isinstance(batch, Sequence) or not all(isinstance(each, Candidate) for each in batch):
            raise TuningError(f"a strategy yields lists of what search.candidate(...) gives, not {batch!r}")
        keys = [self._encoding.encode(candidate) for candidate in batch]
        candidates = dict(zip(keys, batch, strict=True))
        wanted = [key for key in candidates if key not in self._done]
        left = max(0, self.limits.max_trials - len(self._known))  # what the study has is not tried, but counts
        new = {key: candidates[key] for key in [key for key in wanted if key not in self._known][:left]}
        records = self.executor.records(new, self._is_late)
        for key in wanted:
            if self._reached() is not None or not self._is_found(key, records):
                return None
            self._judge(key, candidates[key])
            if key in new:
                self._keep_best()
        return [self._done[key].trial for key in keys] if all(key in self._done for key in keys) else None

    def _is_found(self, key: str, records: Iterator[Record]) -> bool:
        while key not in self._known:
            record = next(records, None)
            if record is None:
                return False
            self._known[record.key] = record
        return True

    def _judge(self, key: str, candidate: Candidate) -> None:
        record = self._known[key]
        self._done[key] = RecordedTrial(self._trial(len(self.trials), candidate, record), record)
        self.trials.append(self._done[key].trial)
        if candidate.recovery == "full" or self._done[key].trial is best_of(self.trials):
            self.search.keep(candidate)
        self.watch(self.trials)

    def _trial(self, number: int, candidate: Candidate, record: Record) -> Trial:
        accuracy, goal = self.search.accuracy, self.search.goal
        objectives = self.search.figures(candidate.config)
        loss, problem = float("inf"), record.problem
        if not problem:
            try:
                accuracy.loss(record.metrics, self.evaluation.baseline)
                loss = self.acceptance.loss(candidate, record, self.tried)
            except EvaluationError as error:  # of an earlier run
                problem = str(error)
        met = not problem and record.samples is None and loss <= accuracy.max_loss and goal.within(objectives)
        return Trial(
            number, candidate.config, {} if problem else record.metrics, loss, objectives,
            goal.cost(objectives, self.search.of_float), met, candidate.recovery, record.seconds, record.evaluation,
            problem, record.samples, excess=goal.excess(objectives),
        )  # fmt: skip

    def _keep_best(self) -> None:
        best = best_of(self.trials)
        if best is not None and best is not self._best:
            self.study.keep_best(best, self.search.recovery)
            self._best = best
