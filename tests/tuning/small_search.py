"""A search that takes no time, which processes of their own can run; every evaluation leaves a line in a file."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fake import FakeModel
from torch import nn

from subbyte import TuneConfig
from subbyte.tuning import (
    Accuracy,
    Limits,
    Proposals,
    Search,
    Shared,
    Task,
    Trial,
    TuneResult,
    read_goal,
    search_best,
)
from subbyte.tuning.strategies import registry

SENSITIVITIES = {"first": 3.0, "middle": 0.2, "last": 1.0}
STALE = 3.0


class SmallModel(FakeModel):
    """What it converts to can be remembered."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(SENSITIVITIES, 1000), SENSITIVITIES)

    def quantize(self, config: TuneConfig) -> Any:
        return nn.Identity()

    def __reduce__(self) -> tuple[Any, ...]:
        return SmallModel, ()


def pairs(search: Search) -> Proposals:
    """Batches of two: each op's fourth and fifth rung, then all of them together."""
    ladders = {op.key: search.ladder(op.key) for op in search.space.tunable}
    chosen = {}
    for key, ladder in ladders.items():
        trials = yield [search.candidate({key: ladder[rung]}) for rung in (3, 4)]
        best = min(range(2), key=lambda index: (not trials[index].met, trials[index].cost))
        chosen[key] = ladder[3 + best]
    yield [search.candidate(chosen), search.candidate(chosen)]


def nothing(search: Search) -> Proposals:
    """Proposes nothing."""
    yield from ()


class Logged:
    """The evaluation: 1 less the errors; notes who evaluated what.

    Args:
        log: where.
        seconds: that it takes.
        at: done with the number of this process's evaluations so far.
        company: processes that must have a candidate in hand before any goes on.
    """

    def __init__(
        self, log: Path, seconds: float = 0.0, at: Callable[[int], None] = lambda count: None, company: int = 1
    ) -> None:
        self.company = company
        self.log, self.seconds, self.at, self.count = log, seconds, at, 0

    def __call__(self, config: Any) -> float:
        self.at(self.count)
        self.count += 1
        if config is not None:
            self.log.with_suffix(f".{os.getpid()}").touch()
            while len(list(self.log.parent.glob(f"{self.log.stem}.[0-9]*"))) < self.company:
                time.sleep(0.02)
        time.sleep(self.seconds)
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {'float' if config is None else shown(config)}\n")
        return 1.0 if config is None else 1 - SmallModel().error(config).squared


def shown(config: TuneConfig) -> str:
    return " ".join(str(each) for each in config.op.values()).replace(" ", "")


def lines(log: Path) -> list[str]:
    """What was evaluated."""
    return [line.split()[1] for line in log.read_text().splitlines()] if log.exists() else []


def tried_by(log: Path) -> set[str]:
    """The processes that tried candidates."""
    return {line.split()[0] for line in log.read_text().splitlines() if not line.endswith("float")}


def search_small(evaluate: Any, storage: Any, **given: Any) -> TuneResult:
    """The search; `given` are fields of Task, and limits."""
    limits = {name: given.pop(name) for name in ("max_trials", "timeout", "first_met") if name in given}
    watch: Callable[[Sequence[Trial]], None] = given.pop("watch", lambda trials: None)
    accuracy = given.pop("accuracy", Accuracy(0.02))
    task = Task(evaluate, accuracy, read_goal("size"), given.pop("strategy", "pairs"), storage=storage, **given)
    with patch.dict(registry._STRATEGIES, {"pairs": pairs, "nothing": nothing}):
        return search_best(None, SmallModel(), task, Limits(**{"max_trials": 50} | limits), watch)


def die(count: int) -> None:
    if count == 4:
        os.kill(os.getpid(), signal.SIGKILL)


def be_interrupted(count: int) -> None:
    if count == 4:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)


def run_alone(storage: Path, log: Path, at: Callable[[int], None]) -> None:
    """In a process of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    search_small(Logged(log, at=at), storage, study="small")


def run_shared(storage: Path, log: Path, found: Path, at: Callable[[int], None], company: int) -> None:
    """In a process of its own; the trials' configurations and the best go to a file."""
    result = search_small(Logged(log, 0.05, at, company), storage, study="small", distribution=Shared(STALE))
    found.write_text("\n".join([*(shown(trial.config) for trial in result.trials), str(result.best.number)]))
