"""Trials on a Ray cluster."""

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from subbyte.errors import TuningError
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.distributed.executor import Distribution, Executor, IsLate
from subbyte.tuning.evaluation import Evaluation
from subbyte.tuning.study import Record, Study

_TRIES = 3  # of a trial whose worker dies
_POLL = 1.0  # seconds between looks at the time


@dataclass(frozen=True)
class Ray(Distribution):
    """This process runs the strategy and keeps the study; actors on a Ray cluster try what a batch holds, side by side.

    Model, data and evaluation are sent to each actor once, which makes and calibrates a tunable model of its own. The
    cluster is the one that `ray.init` of this process has joined, or the one it finds: RAY_ADDRESS, else a local one
    that ends with the search.

    Args:
        workers: actors; None is one for every `cpus` of the cluster.
        cpus: of each.
        gpus: of each.
    """

    workers: int | None = None
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.workers is not None and (not isinstance(self.workers, int) or self.workers < 1):
            raise TuningError(f"workers must be a whole number above zero, not {self.workers!r}")
        if not self.cpus > 0 or self.gpus < 0:
            raise TuningError(f"a worker needs a positive number of cpus and 0 or more gpus, not {self}")

    def executor(self, evaluation: Evaluation, study: Study) -> Executor:
        return _RayExecutor(self, evaluation, study)


class _RayExecutor(Executor):
    def __init__(self, asked: Ray, evaluation: Evaluation, study: Study) -> None:
        self._ray = _imported_ray()
        self._study, self._evaluation = study, evaluation
        self._hired: list[Any] = []
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        try:
            self._sent = self._send(evaluation)
            self._actor = self._ray.remote(num_cpus=asked.cpus, num_gpus=asked.gpus)(_Worker)
            cpus = self._ray.cluster_resources().get("CPU", 1)
            self._idle = [self._hire() for _ in range(asked.workers or max(1, int(cpus / asked.cpus)))]
            self.workers = len(self._idle)
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _send(self, evaluation: Evaluation) -> Any:
        # Clocks of several machines are not compared: this process gives up what takes too long.
        search = replace(evaluation.search, progress=_unwatched, errors={}, is_late=_never)
        for module in _modules_of_files():
            self._ray.cloudpickle.register_pickle_by_value(module)
        try:
            return self._ray.put(replace(evaluation, search=search))
        except Exception as error:  # of whatever cannot be pickled
            cause = error.__cause__ or error
            raise TuningError(
                f"the search cannot be sent to Ray's workers: {cause}; model, data and evaluate must be picklable "
                "(open files, locks and generators are not)"
            ) from error

    def _hire(self) -> Any:
        self._hired.append(self._actor.remote(self._sent))
        return self._hired[-1]

    def _wait_until_ready(self) -> None:
        try:
            self._ray.get([worker.ready.remote() for worker in self._idle])
        except self._ray.exceptions.RayError as error:
            raise TuningError(f"Ray's workers cannot make the model: {error}") from error

    def records(self, wanted: Mapping[str, Candidate], is_late: IsLate) -> Iterator[Record]:
        queue = deque(wanted)
        lost = dict.fromkeys(wanted, 0)
        running: dict[Any, tuple[Any, str]] = {}
        while queue or running:
            while queue and self._idle and not is_late():
                worker, key = self._idle.pop(), queue.popleft()
                running[worker.record.remote(key, wanted[key])] = (worker, key)
            if not running:
                return
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=_POLL)
            if not done:
                if is_late() and all(wanted[key].recovered for _, key in running.values()):
                    return
                continue
            (ended,) = done
            worker, key = running.pop(ended)
            record = self._record(ended, key, lost)
            self._idle.append(self._hire() if record is None or record.problem == _LOST else worker)
            if record is None:
                queue.appendleft(key)
                continue
            self._study.add(self._evaluation.valued(record, wanted[key]))
            yield record

    def _record(self, ended: Any, key: str, lost: dict[str, int]) -> Record | None:
        """None where the worker has died and the trial is to be run again."""
        try:
            found: Record = self._ray.get(ended)
        except self._ray.exceptions.RayActorError:
            lost[key] += 1
            return Record(key, {}, 0.0, 0.0, _LOST) if lost[key] == _TRIES else None
        return found

    def close(self) -> None:
        if self._is_ours:
            self._ray.shutdown()
        else:
            for worker in self._hired:
                self._ray.kill(worker)


_LOST = f"the worker died {_TRIES} times while it tried this"


class _Worker:
    """An actor; what it is given is unpickled here, which makes the tunable model anew."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    def ready(self) -> bool:
        return True

    def record(self, key: str, candidate: Candidate) -> Record:
        return self._evaluation.record(key, candidate)


def _never() -> bool:
    return False


def _unwatched(what: str, share: float) -> None:
    return


def _modules_of_files() -> list[ModuleType]:
    """Modules that were loaded from a file by its path, as those of a recipe: no worker can import them by name."""
    loaded = {name: module for name, module in sys.modules.items() if "." not in name and name != "__main__"}
    return [
        module
        for name, module in loaded.items()
        if isinstance(getattr(module.__spec__, "loader", None), SourceFileLoader) and PathFinder.find_spec(name) is None
    ]


def _imported_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise TuningError(f"distributed='ray' needs Ray: pip install subbyte[ray] ({error})") from error
    return ray
