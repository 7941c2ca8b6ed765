"""Contenders that take turns, each in a process of its own.

In one process the idle threads of one library's pool spin and slow the next library two to five times.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import Self, TypeVar

from timing import Times

LEAST_TURNS = 5

Turn = Callable[[], Mapping[str, Sequence[float]]]
Result = TypeVar("Result")


def in_fresh_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Return what a function of a module gives in a new process."""
    with _process() as process:
        return process.submit(function, *arguments).result()


class Contenders:
    """One process per contender, started at its first turn and kept until the `with` block ends.

    Args:
        names: Names of the contenders, in the order of their turns.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._processes = {name: _process() for name in names}

    def ask(self, name: str, function: Callable[..., Result], *arguments: object) -> Result:
        """Return what a function of a module gives in the process of one contender."""
        return self._processes[name].submit(function, *arguments).result()

    def take_turns(self, turns: Mapping[str, Turn], seconds: float, least: int = LEAST_TURNS) -> dict[str, Times]:
        """Give each contender one turn after another and return all times, by what was called.

        Args:
            turns: By contender, a function of a module that returns the seconds of each call, by what was called.
            seconds: How long the turns go on.
            least: Number of turns that each contender has, even if they take longer.
        """
        found: dict[str, list[float]] = {}
        end = time.perf_counter() + seconds
        taken = 0
        while taken < least or time.perf_counter() < end:
            for name, turn in turns.items():
                for called, each in self.ask(name, turn).items():
                    found.setdefault(called, []).extend(each)
            taken += 1
        return {called: Times(tuple(each)) for called, each in found.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.shutdown()


def _process() -> ProcessPoolExecutor:
    # Spawned, not forked: a forked process would share the state of the parent's thread pools.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))
