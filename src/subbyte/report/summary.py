"""The table of a quantized model."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import nn

from subbyte.adaptor.pytorch.prepare import model_bytes
from subbyte.adaptor.pytorch.state import state_of
from subbyte.report.console import PlainConsole
from subbyte.report.rows import Row, rows_beside_ops, rows_of, stored_weights


@dataclass(frozen=True)
class Summary:
    """What a quantized model is: a row for each op and for each other module with parameters, and totals.

    Args:
        rows: for each name, type, requested and realized spec, weight_dtype, activation_dtype, bytes, macs, kernel,
            params, weight_sqnr and activation_sqnr (decibels against float), ...
        totals: float_bytes, bytes, compression, params and macs, their share by (weight, activation) bits, and the
            shares that are quantized.
    """

    rows: list[Row]
    totals: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "totals": self.totals}

    def __rich__(self) -> Group:
        return Group(self._table(), Text(self.footer()))

    def __str__(self) -> str:
        console = PlainConsole(width=180, no_color=True)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def header(self) -> str:
        """Say which share of the parameters, and of the multiply-accumulates if these are known, is quantized."""
        shares = f"{self.totals['quantized_params_share']:.1%} of the parameters"
        if self.totals["macs"]:
            shares += f" and {self.totals['quantized_macs_share']:.1%} of the multiply-accumulates"
        return f"Subbyte: {shares} quantized"

    def footer(self) -> str:
        """The totals, in words."""
        totals = self.totals
        size = (
            f"{totals['params']:,} parameters: {totals['float_bytes']:,} bytes in float, {totals['bytes']:,} now "
            f"({totals['compression']:.2f}x smaller)"
        )
        if not totals["macs"]:
            return f"{size}\nmultiply-accumulates: not recorded; quantize with one batch of data to have them"
        shares = ", ".join(f"{key} {share:.1%}" for key, share in totals["macs_share"].items())
        return (
            f"{size}\n{totals['macs']:,} multiply-accumulates a sample: {shares}\n"
            f"low-bit share of these (a factor under 8 bits): {totals['low_bit_macs_share']:.1%}"
        )

    def _table(self) -> Table:
        table = Table(title=self.header())
        for heading, justify in _COLUMNS:
            table.add_column(heading, justify=justify, overflow="fold")
        for row in self.rows:
            table.add_row(
                Text(row["name"]), row["type"], row["weight_dtype"] or "-", row["activation_dtype"],
                _against_request(row), f"{row['params']:,}", f"{row['bytes']:,}",
                "-" if row["macs"] is None else f"{row['macs']:,}",
                _decibels(row["weight_sqnr"]), _decibels(row["activation_sqnr"]), row["kernel"],
            )  # fmt: skip
        return table


def _against_request(row: Row) -> str:
    if row["requested"] != row["realized"]:
        return f"requested {row['requested']}"
    is_float = min(row["weight_bits"], row["activation_bits"]) == 32
    return f"float: {row['float_because']}" if is_float else "as requested"


_COLUMNS: list[tuple[str, Any]] = [
    ("op", "left"), ("type", "left"), ("weight", "left"), ("input", "left"), ("realized", "left"),
    ("params", "right"), ("bytes", "right"), ("MACs", "right"), ("SQNR w", "right"), ("SQNR in", "right"),
    ("kernel", "left"),
]  # fmt: skip


def summary(model: nn.Module) -> Summary:
    """What a prepared or converted model is, op by op.

    Raises:
        ModelError: the model is not quantized.
    """
    rows = [*rows_of(model), *rows_beside_ops(model)]
    return Summary(rows, totals_of(model, rows))


def totals_of(model: nn.Module, rows: list[Row]) -> dict[str, Any]:
    """The footer's figures; a weight that several ops share counts once for each precision that it is kept at."""
    state = state_of(model)
    stored = stored_weights(model)
    origins = {weight.origin: weight for weight in stored}.values()
    params = sum(state.float_parameters.values())
    by_bits = Counter({"w32": params - sum(weight.count for weight in origins)})
    for weight in stored:
        by_bits[f"w{weight.spec.dtype.bits}"] += weight.count
    left = state.float_bytes - sum(weight.float_bytes for weight in origins)
    quantized = sum(weight.count for weight in origins if not weight.spec.is_float)
    size = model_bytes(model) if state.converted else left + sum(weight.bytes for weight in stored)
    return {
        "params": params,
        "params_by_bits": {key: count for key, count in by_bits.items() if count},
        "quantized_params_share": quantized / max(params, 1),
        "float_bytes": state.float_bytes,
        "bytes": size,
        "compression": state.float_bytes / max(size, 1),
    } | _macs(rows)


def _macs(rows: list[Row]) -> dict[str, Any]:
    by_bits: Counter[str] = Counter()
    for row in rows:
        weight = "" if row["weight_dtype"] is None else f"w{row['weight_bits']}"
        by_bits[f"{weight}a{row['activation_bits']}"] += row["macs"] or 0
    macs = by_bits.total()
    low = sum(row["macs"] or 0 for row in rows if _bits(row) < 8)
    quantized = sum(row["macs"] or 0 for row in rows if row["is_quantized"])
    return {
        "macs": macs,
        "macs_share": {key: count / macs for key, count in by_bits.most_common() if count},
        "low_bit_macs_share": low / macs if macs else 0.0,
        "quantized_macs_share": quantized / macs if macs else 0.0,
    }


def _bits(row: Row) -> int:
    """The narrower of weight and input; an op without weight has only the input."""
    bits: int = min(row["weight_bits"] if row["weight_dtype"] else 32, row["activation_bits"])
    return bits


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
