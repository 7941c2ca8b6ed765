"""Several processes on one study: each trial once, and the same end for all."""

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from small_search import STALE, Logged, die, lines, run_shared, search_small, shown, tried_by

from subbyte import TuningError
from subbyte.tuning import Proposals, Search, Shared, distribution_of
from subbyte.tuning.distributed import Local, Ray
from subbyte.tuning.distributed.claims import Claims
from subbyte.tuning.strategies import registry
from subbyte.tuning.study import Record, Study

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["subbyte"])
IDENTITY = {"model": "a"}


def alone(count: int) -> None:
    """Nothing."""


def started(storage: Path, log: Path, found: Path, at: Callable[[int], None] = alone, company: int = 1) -> Any:
    process = PROCESSES.Process(target=run_shared, args=(storage, log, found, at, company))
    process.start()
    return process


def tried(log: Path) -> list[str]:
    return [line for line in lines(log) if line != "float"]


def test_two_processes_share_the_trials(tmp_path: Path) -> None:
    whole = search_small(Logged(tmp_path / "whole.log"), tmp_path / "whole.db")
    log = tmp_path / "log"
    processes = [started(tmp_path / "s.db", log, tmp_path / f"found{index}", company=2) for index in range(2)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(tried(log)) == len(set(tried(log))) == len(whole.trials)
    assert len(tried_by(log)) == 2
    expected = [*(shown(trial.config) for trial in whole.trials), str(whole.best.number)]
    assert [(tmp_path / f"found{index}").read_text().splitlines() for index in range(2)] == [expected, expected]


def test_the_trial_of_a_killed_process_is_run_again(tmp_path: Path) -> None:
    whole = search_small(Logged(tmp_path / "whole.log"), tmp_path / "whole.db")
    log = tmp_path / "log"
    killed = started(tmp_path / "s.db", log, tmp_path / "none", die)
    killed.join(60)
    assert killed.exitcode == -9
    other = started(tmp_path / "s.db", log, tmp_path / "found")
    other.join(60)
    assert other.exitcode == 0
    assert len(tried(log)) == len(set(tried(log))) == len(whole.trials)
    assert (tmp_path / "found").read_text().splitlines()[-1] == str(whole.best.number)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path / "s.db", IDENTITY, "small")


def of_another(study: Study, tmp_path: Path) -> Study:
    return Study(tmp_path / "s.db", IDENTITY, "small")


def test_a_candidate_is_claimed_once(study: Study, tmp_path: Path) -> None:
    one, other = Claims(study, 60.0), Claims(of_another(study, tmp_path), 60.0)
    assert one.take("a") is not None
    assert other.taken() == {"a"}
    assert other.take("a") is None
    assert other.take("b") is not None
    assert one.taken() == {"a", "b"}


def test_of_claims_at_once_the_first_holds(study: Study) -> None:
    claims = [Claims(study, 60.0) for _ in range(8)]
    held: list[int | None] = []
    threads = [threading.Thread(target=lambda each=each: held.append(each.take("a"))) for each in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([each for each in held if each is not None]) == 1


def test_what_has_ended_is_claimed_no_more(study: Study, tmp_path: Path) -> None:
    study.add(Record("a", {"metric": 1.0}, 1.0, 1.0, "", (0.0, 1.0)))
    claims = Claims(of_another(study, tmp_path), 60.0)
    assert claims.taken() == {"a"}
    assert claims.take("a") is None


def test_a_stale_claim_is_taken_over(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("subbyte.tuning.distributed.claims.time.monotonic", lambda: now)
    one, other = Claims(study, 60.0), Claims(of_another(study, tmp_path), 60.0)
    lost = one.take("a")
    assert lost is not None
    assert other.taken() == {"a"}
    now = 59.0
    assert other.taken() == {"a"}
    now = 61.0
    assert other.taken() == set()
    claim = other.take("a")
    assert claim is not None
    one.fulfil(lost, Record("a", {"metric": 0.1}, 1.0, 1.0, "", (0.0, 1.0)))  # was not dead after all
    other.fulfil(claim, Record("a", {"metric": 0.2}, 1.0, 1.0, "", (0.0, 1.0)))
    assert [record.metrics for record in study.records()] == [{"metric": 0.2}]


def test_a_claim_that_beats_is_kept(study: Study, tmp_path: Path) -> None:
    one, other = Claims(study, 0.6), Claims(of_another(study, tmp_path), 10.0)
    claim = one.take("a")
    assert claim is not None
    waited = threading.Event()
    with one.held(claim):
        for _ in range(100):
            if "beats" in study.storage.get_trial(claim).user_attrs:
                break
            waited.wait(0.1)
        assert study.storage.get_trial(claim).user_attrs["beats"] >= 1
        assert other.taken() == {"a"}


def test_who_is_interrupted_gives_up_its_claim(study: Study, tmp_path: Path) -> None:
    one, other = Claims(study, 60.0), Claims(of_another(study, tmp_path), 60.0)
    claim = one.take("a")
    assert claim is not None
    with pytest.raises(KeyboardInterrupt), one.held(claim):
        raise KeyboardInterrupt
    assert study.storage.get_trial(claim).state is TrialState.PRUNED
    assert other.take("a") is not None


def test_no_time_to_wait_for_others(study: Study, tmp_path: Path) -> None:
    log = tmp_path / "log"
    result = search_small(Logged(log), tmp_path / "t.db", study="small", distribution=Shared(), timeout=0)
    assert len(result.trials) == 1


def test_a_study_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="study="):
        search_small(Logged(tmp_path / "log"), tmp_path / "s.db", distribution=Shared())
    assert not lines(tmp_path / "log")


def test_the_strategy_is_told_how_many_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def asking(search: Search) -> Proposals:
        told.append(search.workers)
        yield [search.candidate({})]

    monkeypatch.setitem(registry._STRATEGIES, "asking", asking)
    for distribution in (Local(), Shared(STALE), Shared(STALE, workers=3)):
        search_small(
            Logged(tmp_path / "log"), tmp_path / "s.db", study="small", strategy="asking",
            distribution=distribution,
        )  # fmt: skip
    assert told == [1, 1, 3]


def test_distributions_by_name() -> None:
    assert distribution_of(None) == Local()
    assert distribution_of({"ray": {"workers": 4}}) == Ray(workers=4)
    assert distribution_of("shared") == Shared(60.0)
    assert distribution_of("ray") == Ray()
    assert distribution_of(Ray(workers=3)) == Ray(workers=3)


@pytest.mark.parametrize("given", ["rays", "sharde", 3])
def test_no_such_distribution(given: Any) -> None:
    with pytest.raises(TuningError, match="distributed is 'shared', 'ray'"):
        distribution_of(given)


@pytest.mark.parametrize("make", [lambda: Shared(0), lambda: Ray(workers=0), lambda: Ray(cpus=0), lambda: Ray(gpus=-1)])
def test_settings_that_are_none(make: Callable[[], Any]) -> None:
    with pytest.raises(TuningError, match=r"must be|needs"):
        make()
