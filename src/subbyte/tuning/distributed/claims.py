"""Claims: which of several processes tries a candidate, and what becomes of it when that process dies."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from subbyte.tuning.study import Record, Study, read_record

_BEATS = 6  # of a claim in the time after which it is stale


class Claims:
    """Trials of a study that are being run.

    A claim is a running Optuna trial with the candidate's key. Of several claims on a candidate the one with the lowest
    number holds. Its process adds to a count every few seconds; where the count has stood still for too long, by the
    clock of who looks, the process is dead and the claim stale. Clocks of several machines are never compared.

    Args:
        study: that the processes share.
        stale: seconds without a beat.
    """

    def __init__(self, study: Study, stale: float) -> None:
        self._study = study
        self._stale = stale
        self._beats: dict[int, tuple[int, float]] = {}  # of others' claims: the last count, and since when

    def taken(self) -> set[str]:
        """Keys of candidates that are tried, or being tried; claims that are stale are given up first."""
        trials = self._study.trials()
        for trial in trials:
            if trial.state is TrialState.RUNNING and self._is_stale(trial):
                self.give_up(trial._trial_id)
        return {trial.user_attrs["key"] for trial in trials if self._holds(trial)}

    def take(self, key: str) -> int | None:
        """Claim a candidate; None where another process was first, else the claim."""
        claim = create_trial(state=TrialState.RUNNING, user_attrs={"key": key})
        with self._study.writable():
            number = self._study.storage.create_new_trial(self._study.id, claim)
        if self._first(key, self._study.trials()) == number:
            return number
        self.give_up(number)
        return None

    def _first(self, key: str, trials: Sequence[FrozenTrial]) -> int:
        own = [trial for trial in trials if self._holds(trial) and trial.user_attrs["key"] == key]
        ended = [trial for trial in own if trial.state.is_finished()]
        return min(ended or own, key=lambda trial: trial.number)._trial_id

    def _holds(self, trial: FrozenTrial) -> bool:
        running = trial.state is TrialState.RUNNING and "key" in trial.user_attrs and not self._is_stale(trial)
        return running or read_record(trial) is not None

    def _is_stale(self, trial: FrozenTrial) -> bool:
        count, now = trial.user_attrs.get("beats", 0), time.monotonic()
        last, since = self._beats.get(trial._trial_id, (-1, now))
        if last != count:
            last, since = self._beats[trial._trial_id] = (count, now)
        return now - since >= self._stale

    def give_up(self, claim: int) -> None:
        """Leave the candidate to others."""
        try:
            self._study.storage.set_trial_state_values(claim, TrialState.PRUNED)
        except UpdateFinishedTrialError:
            return  # it has ended, or somebody else has given it up

    def fulfil(self, claim: int, record: Record) -> None:
        """Keep what came of it; nothing where the claim was thought stale and given up meanwhile."""
        storage = self._study.storage
        with self._study.writable():
            try:
                for name, value in record.kept.items():
                    storage.set_trial_user_attr(claim, name, value)
                storage.set_trial_state_values(claim, record.state, record.values)
            except UpdateFinishedTrialError:
                return

    @contextmanager
    def held(self, claim: int) -> Iterator[None]:
        """Keep a claim alive; what ends this process's work meanwhile gives it up."""
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(claim, ended), daemon=True)
        beating.start()
        try:
            yield
        except BaseException:
            self.give_up(claim)
            raise
        finally:
            ended.set()
            beating.join()

    def _beat(self, claim: int, ended: threading.Event) -> None:
        count = 0
        while not ended.wait(self._stale / _BEATS):
            count += 1
            try:
                self._study.storage.set_trial_user_attr(claim, "beats", count)
            except UpdateFinishedTrialError:
                return  # somebody has given it up
            except StorageInternalError:
                continue  # the next beat may come through, and `fulfil` says what is wrong if none does
