"""What a search says while it runs."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.report.tuning.live import LiveSearch, shown_live
from subbyte.spec import TuneConfig
from subbyte.tuning import Accuracy, Limits, Trial, read_goal


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def trial(number: int, loss: float, size: float, seconds: float = 0.0, problem: str = "") -> Trial:
    met = not problem and loss <= 0.01
    return Trial(number, TuneConfig({}), {} if problem else {"metric": 0.5}, loss, {"size": size}, size, met,
                 seconds=seconds, problem=problem)  # fmt: skip


Begin = Callable[..., tuple[LiveSearch, Clock, list[str]]]


@pytest.fixture
def begin() -> Begin:
    def begun(timeout: float | None = None) -> tuple[LiveSearch, Clock, list[str]]:
        clock, lines = Clock(), []
        limits = Limits(10, timeout, started=clock())
        return LiveSearch(Accuracy(), read_goal("size"), limits, lines.append, clock), clock, lines

    return begun


def test_trials_best_target_and_time_left(begin: Begin) -> None:
    live, clock, lines = begin()
    clock.now += 4
    live.watch([trial(0, 0.3, 900)])
    assert lines[-1] == (
        "1 of 10 trials; none good enough yet, nearest: size 900 bytes, loss 30 % of at most 1 %; "
        "up to about 36 s left"
    )  # fmt: skip
    clock.now += 2
    live.watch([trial(0, 0.3, 900), trial(1, 0.005, 1200)])
    assert lines[-1] == (
        "2 of 10 trials; best: size 1,200 bytes, loss 0.5 % of at most 1 %; up to about 24 s left"
    )  # 8 trials of 3 s
    live.watch([trial(0, 0.3, 900), trial(1, 0.005, 1200), trial(2, float("inf"), 1100, problem="no")])
    assert lines[-1].startswith("3 of 10 trials, 1 failed; best: size 1,200 bytes")


def test_nothing_worked_yet(begin: Begin) -> None:
    live, _, lines = begin()
    live.watch([trial(0, float("inf"), 900, problem="no")])
    assert "none that worked yet (loss of at most 1 % wanted)" in lines[-1]


def test_the_nearer_limit_counts(begin: Begin) -> None:
    live, clock, lines = begin(timeout=30)
    clock.now += 20
    live.watch([trial(0, 0.0, 900)])
    assert lines[-1].endswith("up to about 10 s left")  # not 180
    clock.now += 20
    live.watch([trial(0, 0.0, 900), trial(1, 0.0, 800)])
    assert lines[-1].endswith("up to about 0.0 s left")
    patient, clock, lines = begin(timeout=1000)
    clock.now += 20
    patient.watch([trial(0, 0.0, 900)])
    assert lines[-1].endswith("up to about 3 min left")


def test_trials_of_an_earlier_run_do_not_make_the_next_look_quick(begin: Begin) -> None:
    live, _, lines = begin()
    for count in range(1, 6):  # they come at once
        live.watch([trial(number, 0.0, 900, seconds=60) for number in range(count)])
    assert lines[-1].endswith("up to about 5 min left")


def test_what_comes_before_the_first_trial(begin: Begin) -> None:
    live, clock, lines = begin()
    for share in (0.25, 0.5, 1.0):
        clock.now += 5
        live.progress("measuring each op", share)
    assert lines == [
        "measuring each op: 25%, about 15 s left",
        "measuring each op: 50%, about 10 s left",
        "measuring each op: 100%",
    ]
    clock.now += 2
    live.watch([trial(0, 0.0, 900)])
    assert lines[-1].endswith("up to about 18 s left")  # measuring is no part of a trial


def test_lines_go_to_a_terminal_alone() -> None:
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=200)
        with shown_live(Accuracy(), read_goal("size"), Limits(10), console) as live:
            live.progress("measuring each op", 0.5)
            live.watch([trial(0, 0.0, 900)])
        assert ("1 of 10 trials; best: size 900 bytes" in file.getvalue()) is terminal
        assert ("measuring each op" in file.getvalue()) is terminal


def test_a_narrow_terminal_keeps_it_on_one_line() -> None:
    file = io.StringIO()
    with shown_live(
        Accuracy(), read_goal("size"), Limits(10), Console(file=file, force_terminal=True, width=30)
    ) as live:
        live.watch([trial(0, 0.0, 900)])
        shown = file.getvalue()
    assert "\n" not in shown
    assert "…" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_tune_tells_it(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = randomized(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))).eval(), seeded((4, 4))
    ours, theirs = os.openpty() if terminal else os.pipe()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with open(theirs, "w", encoding="utf-8") as error, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", error)
        subbyte.quantization.tune(model, data, lambda _: 1.0, max_trials=2, recover=[], storage=tmp_path / "study.db")
        error.write("end")
        error.flush()
        written = b""
        while not written.endswith(b"end"):  # a terminal gives a part at a time
            written += os.read(ours, 60_000)
    shown = written.decode()
    os.close(ours)
    assert shown.endswith("end")
    assert ("2 of 2 trials; best: size" in shown) is terminal
    assert ("measuring each op: 50%" in shown) is terminal
    assert terminal or shown == "end"
