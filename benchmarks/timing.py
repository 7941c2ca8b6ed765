"""Times of several functions, taken in turn so that a drift of the machine meets all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WARM_UP, TURN = 0.01, 0.01  # seconds
REST, LONGEST_REST = 0.005, 0.2


@dataclass(frozen=True)
class Times:
    """Seconds of every call, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return low, high

    def milliseconds(self) -> str:
        """`median (lower quartile..upper quartile)`, in ms; of less than 1 ms also the microseconds."""
        low, high = self.quartiles
        digits = 2 if self.median >= 1e-3 else 3
        return f"{self.median * 1e3:.{digits}f} ({low * 1e3:.{digits}f}..{high * 1e3:.{digits}f})"


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 2) -> dict[str, Times]:
    """Call each in turn, `rounds` times after `warmup` unmeasured ones."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(warmup + rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            elapsed = time.perf_counter() - start
            if number >= warmup:
                seconds[name].append(elapsed)
    return {name: Times(tuple(each)) for name, each in seconds.items()}


def in_turns(functions: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Times]:
    """Rounds in which each has a turn of many calls, for about so many seconds, one round at least.

    A turn begins when the threads of whoever came before have stopped waiting busily for more work, and with calls that
    are not measured, in which its own threads wake up and caches fill.
    """
    found: dict[str, list[float]] = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    rounds = 0
    while functions and (rounds < 1 or time.perf_counter() < end):
        rounds += 1
        for name, function in functions.items():
            _rest()
            _calls_for(WARM_UP, function, least=1)
            found[name] += _calls_for(TURN, function, least=3)
    return {name: Times(tuple(each)) for name, each in found.items()}


def _rest() -> None:
    """Sleep until this process does nothing meanwhile."""
    end = time.perf_counter() + LONGEST_REST
    busy = REST
    while busy > REST / 10 and time.perf_counter() < end:
        start = time.process_time()
        time.sleep(REST)
        busy = time.process_time() - start


def _calls_for(seconds: float, function: Callable[[], Any], least: int) -> list[float]:
    """The time of each call, until so many seconds are over and at least so many calls were made."""
    times: list[float] = []
    now = time.perf_counter()
    end = now + seconds
    while len(times) < least or now < end:
        start = time.perf_counter()
        function()
        now = time.perf_counter()
        times.append(now - start)
    return times
