"""Trials on a local Ray of two workers; skipped where Ray is not installed."""

import builtins
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_search import Logged, lines, search_small, tried_by

from subbyte import TuningError
from subbyte.tuning import Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    tests = str(Path(__file__).parent)
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": tests}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


class Dying(Logged):
    """Its process dies, once, or always where it meets what it does not survive."""

    def __init__(self, log: Path, once: bool) -> None:
        super().__init__(log, 0.05)
        self.once = once

    def __call__(self, config: Any) -> float:
        died = self.log.with_suffix(".died")
        if config is not None and not (self.once and died.exists()):
            with died.open("a") as file:
                file.write(f"{os.getpid()}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(config)


def test_two_workers_find_what_one_process_does(tmp_path: Path, cluster: Any) -> None:
    log = tmp_path / "log"
    whole = search_small(Logged(tmp_path / "whole.log"), tmp_path / "whole.journal")
    evaluate = Logged(log, 0.05)
    result = search_small(evaluate, tmp_path / "s.journal", study="small", distribution=Ray(workers=2))
    assert [trial.config for trial in result.trials] == [trial.config for trial in whole.trials]
    assert [trial.metrics for trial in result.trials] == [trial.metrics for trial in whole.trials]
    assert result.best.config == whole.best.config
    assert len(lines(log)) == len(set(lines(log))) == 1 + len(whole.trials)
    assert len(tried_by(log) - {str(os.getpid())}) == 2
    search_small(evaluate, tmp_path / "s.journal", study="small", distribution=Ray(workers=1))
    assert len(lines(log)) == 1 + len(whole.trials)  # taken up, there was nothing left to try


def test_the_trial_of_a_killed_worker_is_run_again(tmp_path: Path, cluster: Any) -> None:
    log = tmp_path / "log"
    result = search_small(Dying(log, once=True), tmp_path / "s.journal", distribution=Ray(workers=1))
    assert len((tmp_path / "log.died").read_text().splitlines()) == 1
    assert not any(trial.failed for trial in result.trials)
    assert len(lines(log)) == len(set(lines(log))) == 1 + len(result.trials)


@pytest.mark.slow
def test_a_trial_that_kills_every_worker_fails(tmp_path: Path, cluster: Any) -> None:
    result = search_small(
        Dying(tmp_path / "log", once=False), tmp_path / "s.journal", distribution=Ray(workers=1), max_trials=1
    )
    assert len((tmp_path / "log.died").read_text().splitlines()) == 3
    assert result.trials[0].problem == "the worker died 3 times while it tried this"


def test_what_cannot_be_sent_is_refused(tmp_path: Path, cluster: Any) -> None:
    lock = threading.Lock()

    def evaluate(config: Any) -> float:
        with lock:
            return 1.0

    with pytest.raises(TuningError, match="cannot be sent to Ray's workers"):
        search_small(evaluate, tmp_path / "s.journal", distribution=Ray(workers=1))


def test_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refused(name: str, *args: Any, **given: Any) -> Any:
        if name == "ray":
            raise ImportError("no module named ray")
        return imported(name, *args, **given)

    monkeypatch.setattr(builtins, "__import__", refused)
    with pytest.raises(TuningError, match=r"pip install subbyte\[ray\]"):
        search_small(Logged(tmp_path / "log"), tmp_path / "s.journal", distribution=Ray())
