"""The charts of a comparison, as coordinates that the page draws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from subbyte.report.doctor.figures import OpComparison
from subbyte.report.pages import Tick

STEP = 24  # pixels for each op
HEIGHT = 220
LEFT = 56
_DECIBELS = (0.0, 60.0)  # what is beyond is drawn at the edge
_LARGEST_ERROR = 2.0


@dataclass(frozen=True)
class Mark:
    """What one op has: a point, or bars from the bottom up.

    Args:
        x: its middle.
        op: whose it is.
        y: of the point.
        bars: for weight and inputs the top and the height.
    """

    x: float
    op: OpComparison
    y: float = 0.0
    bars: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class Chart:
    """Marks and ticks in a picture of `width` by HEIGHT pixels, and as much below as names need."""

    width: int
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    height: int = HEIGHT
    left: int = LEFT
    step: int = STEP

    @property
    def line(self) -> str:
        """The points, as an SVG polyline takes them."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)

    @property
    def below(self) -> int:
        """How many pixels the longest name takes, slanted."""
        return 24 + max((5 * len(mark.op.name) for mark in self.marks), default=0)


def sqnr_chart(ops: Sequence[OpComparison]) -> Chart:
    """The SQNR of each op's output, from 0 to 60 dB."""
    marks = tuple(Mark(x, op, y=_height(_decibels(op.sqnr))) for x, op in _places(ops))
    ticks = tuple(Tick(_height(value / _DECIBELS[1]), f"{value} dB") for value in range(0, 61, 20))
    return Chart(_width(ops), ticks, marks)


def error_chart(ops: Sequence[OpComparison]) -> Chart:
    """What each op adds itself, noise over signal by weight and by inputs, stacked."""
    errors = [op.own_error for op in ops if op.own_error is not None and math.isfinite(op.own_error)]
    top = min(max(errors, default=0.0), _LARGEST_ERROR) or 1.0
    marks = tuple(Mark(x, op, bars=_bars(op, top)) for x, op in _places(ops))
    ticks = tuple(Tick(_height(part), f"{100 * part * top:.3g} %") for part in (0.0, 0.25, 0.5, 0.75, 1.0))
    return Chart(_width(ops), ticks, marks)


def _bars(op: OpComparison, top: float) -> tuple[tuple[str, float, float], ...]:
    weight = min((op.weight_error or 0.0) / top, 1.0)
    both = min((op.own_error or 0.0) / top, 1.0)
    parts = (("weight", 0.0, weight), ("input", weight, both))
    return tuple((name, _height(high), _height(low) - _height(high)) for name, low, high in parts if high > low)


def _places(ops: Sequence[OpComparison]) -> list[tuple[float, OpComparison]]:
    return [(LEFT + STEP * (index + 0.5), op) for index, op in enumerate(ops)]


def _width(ops: Sequence[OpComparison]) -> int:
    return LEFT + STEP * max(len(ops), 1) + 40


def _decibels(value: float) -> float:
    """Its share of the chart's height; of what is no number none."""
    low, high = _DECIBELS
    return 0.0 if math.isnan(value) else (min(max(value, low), high) - low) / (high - low)


def _height(share: float) -> float:
    return 10 + (HEIGHT - 10) * (1.0 - share)
