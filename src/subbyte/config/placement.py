"""Default for ops that only combine values: they are quantized if only ops with quantized inputs consume them."""

from collections.abc import Mapping, Sequence, Set

from subbyte.spec import OpConfig, OpInfo, OpKey

_COMBINING = frozenset({"add", "mul", "cat"})  # `stack` is a cat, too


def combines(op: OpInfo) -> bool:
    """Return whether the op only combines values, so that quantizing it helps only quantized consumers."""
    return op.type in _COMBINING


def consumed_in_float(
    ops: Sequence[OpInfo], configs: Mapping[OpKey, OpConfig], movable: Set[OpKey]
) -> dict[OpKey, str]:
    """Return the movable ops that must become float because a consumer reads their output in float.

    A movable op stays quantized if all its consumers are quantized. These may be movable ops themselves. An op that
    reads its own results, as in a recurrence, becomes float, because its rounding errors would accumulate.

    Args:
        ops: All ops of the model.
        configs: What each op gets.
        movable: The quantized ops that may become float.

    Returns:
        The reason for each op that becomes float.
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
