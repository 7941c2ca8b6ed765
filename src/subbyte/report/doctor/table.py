"""A comparison as a table, and how its figures are written."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from subbyte.report.doctor.figures import OpComparison, QuantizerFigures

_COLUMNS: list[tuple[str, Any]] = [
    ("op", "left"), ("type", "left"), ("weight / input", "left"), ("SQNR", "right"), ("by weight", "right"),
    ("by input", "right"), ("saturation", "right"), ("range used", "right"), ("codes used", "right"),
    ("remedy", "left"),
]  # fmt: skip


def ops_table(ops: Sequence[OpComparison], first_jump: str | None) -> Table:
    """A row for each op; that where error first jumps is bold."""
    table = Table(title="Subbyte doctor")
    for heading, justify in _COLUMNS:
        table.add_column(heading, justify=justify, overflow="fold")
    for op in ops:
        table.add_row(*map(Text, _cells(op)), style="bold" if op.name == first_jump else "")
    return table


def _cells(op: OpComparison) -> list[str]:
    uses = [" / ".join(map(text, op.quantizers)) for text in (saturation, range_used, codes_used)]
    sqnr = decibels(op.sqnr) + (f", {op.not_finite[1]:,} not finite" if op.not_finite[1] else "")
    first = ", ".join(op.remedies[0].methods) if op.remedies else ""
    return [op.name, op.type, op.precision, sqnr, percent(op.weight_error), percent(op.input_error), *uses, first]


def decibels(value: float) -> str:
    """`17.3`; `exact` where nothing was lost, `-` where nothing could be compared."""
    if math.isnan(value):
        return "-"
    return "exact" if value == math.inf else f"{value:.1f}"


def percent(error: float | None) -> str:
    """`1.3 %`; three digits, as errors span many sizes."""
    if error is None:
        return "-"
    return "0 %" if error == 0 else f"{100 * error:.3g} %"


def saturation(quantizer: QuantizerFigures) -> str:
    """Its share of clipped values."""
    return _share(quantizer.saturation)


def range_used(quantizer: QuantizerFigures) -> str:
    """How much of its range is used."""
    return _share(quantizer.range_used)


def codes_used(quantizer: QuantizerFigures) -> str:
    """How many of its codes are used."""
    return _share(quantizer.codes_used)


def span(ends: tuple[float, float]) -> str:
    """`-1.5 … 2`; one number where both ends are that."""
    low, high = (f"{end:.3g}" for end in ends)
    return low if low == high else f"{low} … {high}"


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.2%}" if 0 < share < 0.01 else f"{share:.0%}"
