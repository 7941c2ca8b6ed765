"""The study: every trial, kept in an Optuna study, where an interrupted search finds it again."""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from subbyte.errors import TuningError
from subbyte.tuning.trial import Trial

DEFAULT_FILE = "subbyte-tuning.db"
_WAIT = 60.0  # seconds that a process waits for another one's writing
_NAMED = {"model": "the model or its weights", "data": "the calibration data", "alternatives": "what its ops may have",
          "evaluation": "the evaluation's code"}  # fmt: skip

Identity = Mapping[str, str]  # what a study is of: digests by the names above


@dataclass(frozen=True)
class Record:
    """What is kept of a trial; how good that is is judged anew when it is read.

    Args:
        key: the candidate, encoded.
        metrics: of the model, by name.
        seconds: that the trial took.
        evaluation: seconds of these that the user's evaluation took.
        problem: why it failed, or empty.
    """

    key: str
    metrics: Mapping[str, float]
    seconds: float
    evaluation: float
    problem: str


class Study:
    """Trials on disk.

    Args:
        storage: an Optuna storage, its URL, or a file for SQLite.
        identity: of the model and all that decides what a trial gives.
        name: of the study; None is the newest one that has not ended, or a new one.

    Raises:
        TuningError: the study is of another model, or the storage cannot be opened.
    """

    def __init__(self, storage: Any, identity: Identity, name: str | None = None) -> None:
        optuna.logging.set_verbosity(logging.WARNING)
        self._study = _open(_storage(storage), identity, name)
        self.name = self._study.study_name

    def records(self) -> list[Record]:
        """All trials that have ended, in the order of the study."""
        return [_record(trial) for trial in self._study.get_trials(deepcopy=False) if trial.state.is_finished()]

    def add(self, record: Record, trial: Trial) -> None:
        """Keep a trial that has ended."""
        attributes = {
            "key": record.key, "metrics": dict(record.metrics), "seconds": record.seconds,
            "evaluation": record.evaluation, "problem": record.problem, "objectives": dict(trial.objectives),
            "met": trial.met,
        }  # fmt: skip
        state = TrialState.FAIL if record.problem else TrialState.COMPLETE
        values = None if record.problem else [trial.loss, trial.cost]
        self._study.add_trial(create_trial(state=state, values=values, user_attrs=attributes))

    @property
    def baseline(self) -> dict[str, float] | None:
        """The metrics of the float model, where they are known."""
        found: dict[str, float] | None = self._study.user_attrs.get("baseline")
        return found

    @baseline.setter
    def baseline(self, metrics: Mapping[str, float]) -> None:
        self._study.set_user_attr("baseline", dict(metrics))

    def end(self) -> None:
        """Note that the search has ended: the next one begins a study of its own."""
        self._study.set_user_attr("ended", True)


def _storage(storage: Any) -> BaseStorage:
    if isinstance(storage, BaseStorage):
        return storage
    if not isinstance(storage, str | Path):
        raise TuningError(f"storage is a file, the URL of a database or an Optuna storage, not {storage!r}")
    url = storage if "://" in str(storage) else f"sqlite:///{Path(storage).absolute()}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            waiting = {"connect_args": {"timeout": _WAIT}} if str(url).startswith("sqlite") else {}
            return RDBStorage(str(url), engine_kwargs=waiting)
    except Exception as error:  # of whichever database
        raise TuningError(f"the study's storage {storage} cannot be opened: {type(error).__name__}: {error}") from error


def _open(storage: BaseStorage, identity: Identity, name: str | None) -> optuna.Study:
    known = {summary.study_name: summary.user_attrs for summary in optuna.get_all_study_summaries(storage)}
    if name is None:
        unended = [
            each for each, found in known.items() if found.get("identity") == dict(identity) and not found.get("ended")
        ]
        name = unended[-1] if unended else f"{identity['model'][:12]}-{len(known)}"
    if name in known:
        _check(known[name].get("identity"), identity, name)
        return optuna.load_study(study_name=name, storage=storage)
    study = optuna.create_study(study_name=name, storage=storage, directions=["minimize", "minimize"])
    study.set_user_attr("identity", dict(identity))
    return study


def _check(stored: Any, identity: Identity, name: str) -> None:
    if not isinstance(stored, dict):
        raise TuningError(f"study {name!r} was not made by subbyte; give another study name or storage")
    differing = [what for key, what in _NAMED.items() if stored.get(key) != identity.get(key)]
    if differing:
        raise TuningError(
            f"study {name!r} is of another search: {' and '.join(differing)} differ; give another study name or storage"
        )


def _record(trial: FrozenTrial) -> Record:
    kept = trial.user_attrs
    return Record(kept["key"], kept["metrics"], kept["seconds"], kept["evaluation"], kept["problem"])
