"""Which of the ops that only combine values are quantized by default: those that quantized ops alone consume."""

from collections.abc import Mapping, Sequence, Set

from subbyte.spec import OpConfig, OpInfo, OpKey

_COMBINING = frozenset({"add", "mul", "cat"})  # `stack` is a cat, too


def combines(op: OpInfo) -> bool:
    """Return whether an op combines values, so that its quantization only serves what reads the result."""
    return op.type in _COMBINING


def consumed_in_float(
    ops: Sequence[OpInfo], configs: Mapping[OpKey, OpConfig], movable: Set[OpKey]
) -> dict[OpKey, str]:
    """Find the ops whose output something reads in float.

    Consumers of the movable ops may be movable themselves. An op counts as quantized once all its consumers do. An op
    that reads its own results, as in a recurrence, therefore stays float: its rounding errors would accumulate.

    Args:
        ops: All ops of the model.
        configs: What each op gets.
        movable: The quantized ops that may become float.

    Returns:
        For each of the movable ops that is found, the reason.
    """
    quantized = {op.name for op in ops if configs[op.key].quantizes_inputs and op.key not in movable}
    pending = [op for op in reversed(ops) if op.key in movable]
    while settled := {op.name for op in pending if op.consumers is not None and op.consumers <= quantized}:
        quantized |= settled
        pending = [op for op in pending if op.name not in settled]
    names = {op.name for op in pending}
    return {op.key: _reason(op, quantized, names) for op in pending}


def _reason(op: OpInfo, quantized: Set[str], pending: Set[str]) -> str:
    """Name a consumer that computes in float, if possible one that does not depend on the others."""
    if op.consumers is None:
        return "no forward was recorded, so what reads its output is not known"
    names = sorted(op.consumers - quantized, key=lambda name: (name in pending, name))
    return f"{names[0]} reads its output in float"
