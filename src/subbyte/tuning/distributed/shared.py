"""Several processes, on one machine or many, that share a study."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from subbyte.errors import TuningError
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.distributed.claims import Claims
from subbyte.tuning.distributed.executor import Distribution, Executor, IsLate
from subbyte.tuning.evaluation import Evaluation
from subbyte.tuning.study import Record, Study

_POLL = 0.2  # seconds between looks at what others have found


@dataclass(frozen=True)
class Shared(Distribution):
    """Each process runs the strategy itself, and tries of every batch what no other has claimed.

    A strategy proposes the same whenever the same trials come back, so all processes see the same trials in the same
    order and end with the same best.

    Args:
        stale: seconds after which the trial of a process that is heard of no more is run again by another.
        workers: processes that are expected, the same number in each; more or fewer may take part.
    """

    stale: float = 60.0
    workers: int = 1
    needs_name = True

    def __post_init__(self) -> None:
        if not self.stale > 0:
            raise TuningError(f"stale must be a positive number of seconds, not {self.stale!r}")
        if not isinstance(self.workers, int) or self.workers < 1:
            raise TuningError(f"workers must be a whole number above zero, not {self.workers!r}")

    def executor(self, evaluation: Evaluation, study: Study) -> Executor:
        return _SharedExecutor(evaluation, study, Claims(study, self.stale), self.workers)


@dataclass(frozen=True)
class _SharedExecutor(Executor):
    evaluation: Evaluation
    study: Study
    claims: Claims
    workers: int = 1

    def records(self, wanted: Mapping[str, Candidate], is_late: IsLate) -> Iterator[Record]:
        left = dict(wanted)
        while left:
            for record in self.study.records():
                if left.pop(record.key, None) is not None:
                    yield record
            if not left or is_late():
                return
            if not self._has_tried_one(left):
                time.sleep(_POLL)

    def _has_tried_one(self, wanted: Mapping[str, Candidate]) -> bool:
        taken = self.claims.taken()
        for key, candidate in wanted.items():
            claim = None if key in taken else self.claims.take(key)
            if claim is not None:
                with self.claims.held(claim):
                    record = self.evaluation.record(key, candidate)
                    self.claims.fulfil(claim, self.evaluation.valued(record, candidate))
                return True
        return False
