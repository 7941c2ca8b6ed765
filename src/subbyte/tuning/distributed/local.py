"""One trial after another, in this process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from subbyte.tuning.candidate import Candidate
from subbyte.tuning.distributed.executor import Distribution, Executor, IsLate
from subbyte.tuning.evaluation import Evaluation
from subbyte.tuning.study import Record, Study


@dataclass(frozen=True)
class Local(Distribution):
    """No other process takes part."""

    def executor(self, evaluation: Evaluation, study: Study) -> Executor:
        return _LocalExecutor(evaluation, study)


@dataclass(frozen=True)
class _LocalExecutor(Executor):
    evaluation: Evaluation
    study: Study

    def records(self, wanted: Mapping[str, Candidate], is_late: IsLate) -> Iterator[Record]:
        for key, candidate in wanted.items():
            record = self.evaluation.record(key, candidate)
            self.study.add(self.evaluation.valued(record, candidate))
            yield record
