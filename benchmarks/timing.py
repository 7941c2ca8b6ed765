"""Times of several functions, taken in turn so that a drift of the machine meets all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
        """`median (lower quartile..upper quartile)`, in ms."""
        low, high = self.quartiles
        return f"{self.median * 1e3:.2f} ({low * 1e3:.2f}..{high * 1e3:.2f})"


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
