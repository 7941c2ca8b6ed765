"""From values to places in a picture."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, floor, log10

_STEPS = (1, 2, 5, 10)  # what people count in
_MOST = 6  # ticks


@dataclass(frozen=True)
class Tick:
    """A line across, and what it says."""

    y: float
    text: str


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`; those beyond are drawn at the edge."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 2)

    def rounds(self) -> Iterator[float]:
        """A few round values between the ends."""
        rough = (self.high - self.low) / _MOST
        power = 10.0 ** floor(log10(rough))
        step = next(each * power for each in _STEPS if each * power >= rough)
        for index in range(ceil(self.low / step), floor(self.high / step) + 1):
            yield index * step


def scale_of(values: Iterable[float], start: float, end: float) -> Scale:
    """One that holds all values, with a little room; of one value, or none, a range around it."""
    found = list(values)
    low, high = min(found, default=0.0), max(found, default=1.0)
    room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, start, end)
