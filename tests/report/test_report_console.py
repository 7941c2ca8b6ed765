"""Names from files cannot control a terminal."""

import io
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from subbyte.report import Summary
from subbyte.report.console import PlainConsole

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m[red]x[/red]:smile:\u202e"
ROW: dict[str, Any] = {
    "name": HOSTILE, "type": HOSTILE, "requested": HOSTILE, "realized": "int4", "float_because": "", "kernel": HOSTILE,
    "weight_dtype": HOSTILE, "activation_dtype": HOSTILE, "params": 1, "bytes": 1, "macs": None, "weight_sqnr": None,
    "activation_sqnr": None, "is_quantized": True,
}  # fmt: skip
TOTALS: dict[str, Any] = {
    "params": 1, "params_by_bits": {}, "float_bytes": 1, "bytes": 1, "compression": 1.0, "macs": 1,
    "macs_share": {HOSTILE: 1.0}, "low_bit_macs_share": 0.0,
    "quantized_params_share": 0.5, "quantized_macs_share": 0.5,
}  # fmt: skip


def is_safe(text: str) -> bool:
    return all(each == "\n" or each.isprintable() for each in text)


@pytest.mark.parametrize("cell", [HOSTILE, Text(HOSTILE)], ids=["str", "Text"])
def test_console_escapes_controls_and_reads_no_markup(cell: str | Text) -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(cell)
    console = PlainConsole(file=io.StringIO(), width=300)
    console.print(table, HOSTILE)
    printed = console.file.getvalue()
    assert is_safe(printed)
    assert printed.splitlines()[-1].endswith(r"\x9b31m[red]x[/red]:smile:\u202e")


def test_summary_of_a_hostile_file_is_safe_to_print() -> None:
    summary = Summary([ROW], TOTALS)
    assert "x1b" in str(summary)
    assert is_safe(str(summary))
