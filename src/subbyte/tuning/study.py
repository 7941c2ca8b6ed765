"""The study: every trial, kept in an Optuna study, where an interrupted search finds it again."""

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from subbyte.errors import TuningError
from subbyte.spec import TuneConfig
from subbyte.tuning.scores import Scores, pack, unpack
from subbyte.tuning.storage import DEFAULT_FILE, cause_of, displayed, file_of, open_storage
from subbyte.tuning.trial import Trial

_NAMED = {"model": "the model or its weights", "data": "the calibration data", "alternatives": "what its ops may have",
          "evaluation": "the evaluation's code"}  # fmt: skip
_SAME = 2e-3  # of a metric: what other machines and numbers of threads may change, one image of five hundred
_MOST = 30_000  # characters of an attribute: a TEXT of MySQL holds twice as many bytes
_DIRECTIONS = [StudyDirection.MINIMIZE, StudyDirection.MINIMIZE]  # of loss and cost

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
        values: loss and cost as the search that tried it counts, for Optuna's own views of the study; not read back.
        samples: that were looked at, where it was certain before the last of them that the loss is too much; else None.
        scores: of these samples, packed; empty if the evaluation returned numbers.
    """

    key: str
    metrics: Mapping[str, float]
    seconds: float
    evaluation: float
    problem: str
    values: tuple[float, float] | None = None
    samples: int | None = None
    scores: str = ""

    @property
    def state(self) -> TrialState:
        """What Optuna calls its outcome."""
        return TrialState.FAIL if self.problem else TrialState.COMPLETE

    @property
    def kept(self) -> dict[str, Any]:
        """Attributes of an Optuna trial, of which `read_record` makes it again."""
        plain = {
            "metrics": dict(self.metrics), "seconds": self.seconds, "evaluation": self.evaluation,
            "problem": self.problem, "samples": self.samples,
        }  # fmt: skip
        return {"record": plain, **_parts("scores", self.scores)}


def read_record(trial: FrozenTrial) -> Record | None:
    """Of one of Optuna's trials; None where it has not ended, or was given up."""
    kept = trial.user_attrs.get("record")
    if kept is None or not trial.state.is_finished():
        return None
    return Record(key=trial.user_attrs["key"], **kept, scores=_joined("scores", trial.user_attrs))


def _parts(name: str, text: str) -> dict[str, str]:
    """Return a text in parts that a column of any database holds."""
    return {f"{name} {part}": text[at : at + _MOST] for part, at in enumerate(range(0, len(text), _MOST))}


def _joined(name: str, attributes: Mapping[str, Any]) -> str:
    parts = [attributes[each] for part in range(len(attributes)) if (each := f"{name} {part}") in attributes]
    return "".join(parts)


class Study:
    """Trials on disk.

    Args:
        storage: an Optuna storage, the URL of a database, or a file (see `open_storage`).
        identity: of the model and all that decides what a trial gives.
        name: of the study; None is the newest one that has not ended, or a new one.

    Raises:
        TuningError: the study is of another model, or the storage cannot be opened or read.
    """

    def __init__(self, storage: Any, identity: Identity, name: str | None = None) -> None:
        optuna.logging.set_verbosity(logging.WARNING)
        self.storage = open_storage(storage)
        self._file, self._identity, self._asked = storage, identity, name
        with readable(storage):
            self.name, self.id = _open(self.storage, identity, name)

    def records(self) -> list[Record]:
        """All trials that have ended, in the order of the study."""
        found = (read_record(trial) for trial in self.trials())
        return [record for record in found if record is not None]

    def trials(self) -> list[FrozenTrial]:
        """Optuna's trials, those included that are being run."""
        with readable(self._file):
            return self.storage.get_all_trials(self.id, deepcopy=False)

    def add(self, record: Record) -> None:
        """Keep a trial that has ended: once this returns, no end of this process loses it.

        Raises:
            TuningError: the storage cannot be written to.
        """
        attributes = {"key": record.key, **record.kept}
        trial = create_trial(state=record.state, values=record.values, user_attrs=attributes)
        with self.writable():
            self.storage.create_new_trial(self.id, trial)

    @property
    def baseline(self) -> dict[str, float] | None:
        """The metrics of the float model, where they are known."""
        found: dict[str, float] | None = self._attributes().get("baseline")
        return found

    @property
    def baseline_scores(self) -> Scores | None:
        """The scores of the float model, where they are known."""
        text = _joined("baseline scores", self._attributes())
        return unpack(text) if text else None

    def keep_baseline(self, metrics: Mapping[str, float], scores: Scores | None = None) -> dict[str, float]:
        """Keep the metrics of the float model; where the study knows them, hold these against them.

        Args:
            metrics: of the float model, by the evaluation that the trials to come will have. Where those kept differ by
                more than two thousandths, the trials kept are of another evaluation (its code's digest does not tell
                all): a study that was not asked for by name is then left, for one of the same metrics or a new one.
            scores: of its samples, where the evaluation gives them; kept with the metrics.

        Returns:
            The metrics that are kept.

        Raises:
            TuningError: the study was asked for by name, and has other metrics.
        """
        kept = self.baseline
        if kept is not None and not _agree(kept, metrics):
            if self._asked is not None:
                raise TuningError(
                    f"study {self.name!r} is of another search: the float model has {_shown(kept)} there, and "
                    f"{_shown(metrics)} now, so the evaluation or its data differ; give another study name or storage"
                )
            with readable(self._file):
                self.name, self.id = _open(self.storage, self._identity, None, metrics)
        if self.baseline is None:
            for name, part in _parts("baseline scores", pack(scores) if scores else "").items():
                self._note(name, part)
            self._note("baseline", dict(metrics))
        return self.baseline or dict(metrics)

    def keep_best(self, trial: Trial, recovery: str = "") -> None:
        """Keep the best trial so far, with its whole configuration, for whoever cannot wait for the end.

        Args:
            trial: the best.
            recovery: names the recovery methods that the search has; those of the trial where it was recovered.
        """
        config = [[*key, each.to_dict()] for key, each in trial.config.op.items()]
        methods = recovery if trial.recovered else ""
        self._note("best", {"config": config, "form": trial.recovery, "recovery": methods, "met": trial.met})

    def end(self) -> None:
        """Note that the search has ended: the next one begins a study of its own."""
        self._note("ended", True)

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Say which study it is that cannot be written, and where."""
        try:
            yield
        except TuningError:
            raise
        except Exception as error:  # of whichever database
            raise TuningError(
                f"study {self.name!r} in {displayed(self._file)} cannot be written: {cause_of(error, self._file)}; see "
                "that there is space and that writing is allowed; the trials before this one are kept, and the same "
                "call goes on from there"
            ) from None

    def _attributes(self) -> dict[str, Any]:
        with readable(self._file):
            return self.storage.get_study_user_attrs(self.id)

    def _note(self, name: str, value: Any) -> None:
        with self.writable():
            self.storage.set_study_user_attr(self.id, name, value)


def best_configuration(storage: Any = DEFAULT_FILE, study: str | None = None) -> TuneConfig:
    """The best configuration so far of a search that runs, was killed, or has ended; `quantize` takes it.

    Where recovery methods ran on the best trial a warning names them and their seed: a configuration does not hold
    them, and without them `quantize` makes another model of it.

    Args:
        storage: as for `tune`.
        study: its name; None is the newest that has one.

    Raises:
        TuningError: there is none, or the storage cannot be read.
    """
    file = file_of(storage)
    if file is not None and not file.exists():
        raise TuningError(f"there is no file {displayed(file)}, in which a study could be")
    opened = open_storage(storage)
    with readable(storage):
        found = {each.study_name: each.user_attrs for each in opened.get_all_studies()}
    names = [name for name, kept in found.items() if "best" in kept and study in (None, name)]
    if not names:
        which = "a study" if study is None else f"study {study!r}"
        raise TuningError(
            f"{displayed(storage)} has no trial of {which} that did not fail (studies: {', '.join(found) or 'none'})"
        )
    best = found[names[-1]]["best"]
    if best["form"] != "none":
        quickly = ", quickly and on a part of the data" if best["form"] == "quick" else ""
        warnings.warn(
            f"the best trial of study {names[-1]!r} was recovered by {best['recovery']}{quickly}; give quantize the "
            "same recover= and seed=, as without them it makes another model",
            stacklevel=2,
        )
    config = best["config"]
    return TuneConfig.from_dict({"op": {(name, kind): each for name, kind, each in config}})


@contextmanager
def readable(storage: Any) -> Iterator[None]:
    """Say which storage it is that cannot be read, or made to hold a study."""
    try:
        yield
    except TuningError:
        raise
    except Exception as error:  # of whichever database
        raise TuningError(
            f"the study's storage {displayed(storage)} cannot be read or written, and may be damaged: "
            f"{cause_of(error, storage)}; give another storage"
        ) from None


def _open(
    storage: BaseStorage, identity: Identity, name: str | None, baseline: Mapping[str, float] | None = None
) -> tuple[str, int]:
    """Name and number of a study; `baseline` are the metrics of the float model, where they are known."""
    known = {each.study_name: each.user_attrs for each in storage.get_all_studies()}
    if name is None:
        unended = [each for each, kept in known.items() if _can_go_on(kept, identity, baseline)]
        name = unended[-1] if unended else f"{identity['model'][:12]}-{len(known)}"
    if name not in known:
        with suppress(DuplicatedStudyError):  # another process may be first
            storage.create_new_study(_DIRECTIONS, name)
    number = storage.get_study_id_from_name(name)
    stored = storage.get_study_user_attrs(number).get("identity")
    if stored is None and _is_empty(storage, number):
        storage.set_study_user_attr(number, "identity", dict(identity))
    else:
        _check(stored, identity, name)
    return name, number


def _can_go_on(kept: Mapping[str, Any], identity: Identity, baseline: Mapping[str, float] | None) -> bool:
    if kept.get("identity") != dict(identity) or kept.get("ended"):
        return False
    return baseline is None or "baseline" not in kept or _agree(kept["baseline"], baseline)


def _agree(kept: Mapping[str, float], metrics: Mapping[str, float]) -> bool:
    return set(kept) == set(metrics) and all(
        math.isclose(kept[name], metrics[name], rel_tol=_SAME, abs_tol=1e-9) for name in kept
    )


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())


def _is_empty(storage: BaseStorage, number: int) -> bool:
    return storage.get_study_directions(number) == _DIRECTIONS and not storage.get_n_trials(number)


def _check(stored: Any, identity: Identity, name: str) -> None:
    if not isinstance(stored, dict):
        raise TuningError(f"study {name!r} was not made by subbyte; give another study name or storage")
    differing = [what for key, what in _NAMED.items() if stored.get(key) != identity.get(key)]
    if differing:
        raise TuningError(
            f"study {name!r} is of another search: {' and '.join(differing)} differ; give another study name or storage"
        )
