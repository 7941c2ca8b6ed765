"""Ops that a capability supports in no way: neither a precision nor fp32 is listed for them."""

import warnings
from collections.abc import Sequence

from subbyte.capability import Capability
from subbyte.errors import ConfigError, UnsupportedOpWarning, listing
from subbyte.spec import OpInfo, TuneConfig

_SHOWN = 3  # ops of a type that a message names


def check_supported(capability: Capability, ops: Sequence[OpInfo], tune: TuneConfig) -> None:
    """Raise or warn if an op stays in fp32 that the capability does not list for it.

    Args:
        capability: whose `unsupported` decides between an error and a warning.
        ops: all ops of the model, also those that are not quantizable.
        tune: what the quantizable ops get.

    Warns:
        UnsupportedOpWarning: naming the ops, where `unsupported` is `float`.

    Raises:
        ConfigError: naming the ops, where `unsupported` is `error`.
    """
    unsupported = [op for op in ops if _stays_fp32(op, tune) and not capability.allows_float(op.type, "fp32")]
    found = [op for op in unsupported if not op.imagined]
    if capability.unsupported == "float":
        if found:
            warnings.warn(
                f"{capability.name} lists neither a precision nor fp32 for {_named(capability, found)}; they stay in "
                "fp32 (unsupported: float)",
                UnsupportedOpWarning,
                stacklevel=3,
            )
        return
    if found:
        raise ConfigError(
            f"{capability.source}: {capability.name} lists neither fp32 nor the requested precision for "
            f"{_named(capability, found)}; list the op type in a precision, or in fp32, as in capabilities: {{fp32: "
            f"[{listing(op.type for op in found)}]}}, or write unsupported: float to leave such ops in fp32 with a "
            "warning"
        )
    if unsupported:
        raise ConfigError(
            f"{capability.source}: {capability.name} lists fp32 only for some op types, so a forward must show which "
            "functional ops (add, matmul, ...) the model runs: pass calibration data (one batch is enough), or write "
            "unsupported: float"
        )


def _stays_fp32(op: OpInfo, tune: TuneConfig) -> bool:
    return not op.quantizable or tune.op[op.key].is_unchanged


def _named(capability: Capability, ops: Sequence[OpInfo]) -> str:
    """The ops by type, as in `add ('layer1.add', 'layer2.add')`."""
    by_type: dict[str, list[OpInfo]] = {}
    for op in ops:
        by_type.setdefault(op.type, []).append(op)
    return "; ".join(f"{op_type} ({_names(found)}{_note(capability, found[0])})" for op_type, found in by_type.items())


def _names(ops: Sequence[OpInfo]) -> str:
    more = f" and {len(ops) - _SHOWN} more" if len(ops) > _SHOWN else ""
    return ", ".join(repr(op.name) for op in ops[:_SHOWN]) + more


def _note(capability: Capability, op: OpInfo) -> str:
    modes = capability.modes(op.type) if op.quantizable else ()
    if modes:
        return f": listed in {listing(modes)} mode"
    return ": not folded into the op before it, which needs calibration data and an entry in fusions" * (
        op.type.startswith("BatchNorm")
    )
