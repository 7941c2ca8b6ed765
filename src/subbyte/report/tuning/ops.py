"""What the best trial asked of each op, and what the model has."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from subbyte.report.rows import rows_of
from subbyte.report.tuning.untried import note_of
from subbyte.spec import OpConfig
from subbyte.tuning import TuneResult, width


@dataclass(frozen=True)
class TunedOp:
    """One op of the model.

    Args:
        name, type: as in `summary`.
        requested: what the best trial asked for.
        realized: what stands in the model.
        narrowest: of the alternatives that it could have had; None where it had no choice.
        choices: how many alternatives it had.
        wider: whether what it was given is wider than the narrowest.
        weight_bits: of its weight; None without one.
        activation_bits: of its inputs.
        bytes: of its parameters now.
        float_bytes: of them in float.
        kernel: that runs it.
        note: of an op that stays float, which of its other alternatives no trial had, and why; else empty.
    """

    name: str
    type: str
    requested: str
    realized: str
    narrowest: str | None
    choices: int
    wider: bool
    weight_bits: int | None
    activation_bits: int
    bytes: int
    float_bytes: int
    kernel: str
    note: str = ""

    @property
    def as_requested(self) -> bool:
        return self.requested == self.realized

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"as_requested": self.as_requested}


def tuned_ops(result: TuneResult) -> list[TunedOp]:
    """All ops of the model, in the order they run."""
    return [_tuned_op(result, row) for row in rows_of(result.model)]


def _tuned_op(result: TuneResult, row: dict[str, Any]) -> TunedOp:
    key = (row["name"], row["type"])
    alternatives: Sequence[OpConfig] = result.wanted.alternatives.get(key, ())
    asked = result.best.config.op.get(key, OpConfig())
    narrowest = min(alternatives, key=width) if len(alternatives) > 1 else None
    return TunedOp(
        *key, str(asked), row["realized"], None if narrowest is None else str(narrowest), len(alternatives),
        narrowest is not None and width(asked) > width(narrowest),
        None if row["weight_dtype"] is None else row["weight_bits"], row["activation_bits"], row["bytes"],
        row["float_bytes"], row["kernel"], note_of(result, key),
    )  # fmt: skip
