"""Trials on a local Ray of two workers; skipped where Ray is not installed."""

import builtins
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_search import Logged, lines, search_small, tried_by

from subbyte import TuningError
from subbyte.cli.reference import load_object
from subbyte.tuning import Ray
from subbyte.tuning.distributed.ray_cluster import _modules_of_files


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:  # of the workers, which need the modules beside this one
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        yield ray
        ray.shutdown()


class Dying(Logged):
    """Its process dies, once, or always where it meets what it does not survive."""

    def __init__(self, log: Path, once: bool) -> None:
        super().__init__(log, 0.05)
        self.once = once

    def __call__(self, config: Any) -> float:
        died = self.log.with_suffix(".died")
        with contextlib.suppress(FileExistsError):
            if config is not None:
                with died.open("x" if self.once else "a") as file:  # of two workers one creates it
                    file.write(f"{os.getpid()}\n")
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(config)


def test_two_workers_of_which_one_is_killed_find_what_one_process_does(tmp_path: Path, cluster: Any) -> None:
    log = tmp_path / "log"
    whole = search_small(Logged(tmp_path / "whole.log"), tmp_path / "whole.db")
    result = search_small(Dying(log, once=True), tmp_path / "s.db", study="small", distribution=Ray(workers=2))
    assert len((tmp_path / "log.died").read_text().splitlines()) == 1
    assert not any(trial.failed for trial in result.trials)
    assert [trial.config for trial in result.trials] == [trial.config for trial in whole.trials]
    assert [trial.metrics for trial in result.trials] == [trial.metrics for trial in whole.trials]
    assert result.best.config == whole.best.config
    assert len(lines(log)) == len(set(lines(log))) == 1 + len(whole.trials)
    assert os.getpid() not in map(int, tried_by(log))


@pytest.mark.slow
def test_two_workers_share_the_trials(tmp_path: Path, cluster: Any) -> None:
    log = tmp_path / "log"
    evaluate = Logged(log, 0.05)
    result = search_small(evaluate, tmp_path / "s.db", study="small", distribution=Ray(workers=2))
    assert len(tried_by(log) - {str(os.getpid())}) == 2
    search_small(evaluate, tmp_path / "s.db", study="small", distribution=Ray(workers=2))
    assert len(lines(log)) == 2 + len(result.trials)  # taken up, only the float model is evaluated again


@pytest.mark.slow
def test_a_trial_that_kills_every_worker_fails(tmp_path: Path, cluster: Any) -> None:
    result = search_small(
        Dying(tmp_path / "log", once=False), tmp_path / "s.db", distribution=Ray(workers=1), max_trials=1
    )
    assert len((tmp_path / "log.died").read_text().splitlines()) == 3
    assert result.trials[0].problem == "the worker died 3 times while it tried this"


def test_modules_that_a_recipe_names_by_path_are_sent_along(tmp_path: Path) -> None:
    (tmp_path / "zoo.py").write_text("def net():\n    return 1\n")
    net = load_object("zoo.py:net", tmp_path, "model")
    modules = _modules_of_files()
    assert sys.modules[net.__module__] in modules
    assert pytest not in modules


def test_what_cannot_be_sent_is_refused(tmp_path: Path, cluster: Any) -> None:
    lock = threading.Lock()

    def evaluate(config: Any) -> float:
        with lock:
            return 1.0

    with pytest.raises(TuningError, match="cannot be sent to Ray's workers"):
        search_small(evaluate, tmp_path / "s.db", distribution=Ray(workers=2))


def test_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refused(name: str, *args: Any, **given: Any) -> Any:
        if name == "ray":
            raise ImportError("no module named ray")
        return imported(name, *args, **given)

    monkeypatch.setattr(builtins, "__import__", refused)
    with pytest.raises(TuningError, match=r"pip install subbyte\[ray\]"):
        search_small(Logged(tmp_path / "log"), tmp_path / "s.db", distribution=Ray())
