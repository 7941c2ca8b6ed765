"""What the loop asks to try candidates."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

from subbyte.tuning.candidate import Candidate
from subbyte.tuning.evaluation import Evaluation
from subbyte.tuning.study import Record, Study

IsLate = Callable[[], bool]


class Executor(ABC):
    """Tries candidates and keeps in the study what comes of them.

    Attributes:
        workers: how many it tries side by side.
    """

    workers: int = 1

    @abstractmethod
    def records(self, wanted: Mapping[str, Candidate], is_late: IsLate) -> Iterator[Record]:
        """What came of each, in any order, kept in the study already.

        Args:
            wanted: candidates by their keys, none of them in the study when the search began.
            is_late: once it says so nothing new is begun, and the records may end before all are there.
        """

    def close(self) -> None:
        """Let go of workers."""
        return


class Distribution(ABC):
    """How trials are spread; makes an executor for one search.

    Attributes:
        needs_name: whether the study must be named, as several processes have to find the same one.
    """

    needs_name: bool = False

    @abstractmethod
    def executor(self, evaluation: Evaluation, study: Study) -> Executor:
        """Begin.

        Raises:
            TuningError: what it needs is not there.
        """
