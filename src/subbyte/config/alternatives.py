"""What each op of a model may get: the space that tuning searches."""

from collections.abc import Iterable, Sequence, Set
from itertools import product

from subbyte.capability import Capability
from subbyte.config.asked import Asked, Wishes, asked_mode, float_type, wishes
from subbyte.config.post_training import PostTrainingQuantConfig
from subbyte.config.resolve import excluded_names, float_config, modes_of, resolve
from subbyte.config.rules import Rule, RuleBook
from subbyte.config.select import Table, build_config, choose_section
from subbyte.dtypes import dtype, registered_dtypes
from subbyte.errors import ConfigError
from subbyte.spec import OpConfig, OpInfo, OpKey, TensorSpec, TuneConfig

_SOURCE = "tuning"
_NARROWEST = 2  # bits of the integers that are tried unasked

Alternatives = dict[OpKey, tuple[OpConfig, ...]]


def alternatives(
    capability: Capability, ops: Sequence[OpInfo], request: PostTrainingQuantConfig, first_last: str | None = None
) -> Alternatives:
    """The configurations that each op may have.

    What a request states of an op, by type, name or position, are its alternatives. Where it states no data type, they
    are the integers of two to eight bits that the capability lists, each as the default of a section, but with the
    calibration method that suits its width where the capability lists that; the global precision is the narrowest.
    Each float type that the capability lists is one more, unless a constraint, a position or the op's name decide.

    Args:
        capability: what the ops can do.
        ops: all ops of the model, with their positions where a forward was recorded.
        request: what is asked.
        first_last: the precision of the first and last ops; beats the request's own.

    Returns:
        For every op at least one, without repetition.

    Raises:
        ConfigError: as for `resolve`.
    """
    resolved = resolve(capability, ops, request, first_last)
    rules = RuleBook(capability, ops, request, first_last)
    return {op.key: _of_op(capability, op, request, rules.for_op(op), resolved) for op in ops if op.quantizable}


def _of_op(
    capability: Capability, op: OpInfo, request: PostTrainingQuantConfig, rules: Sequence[Rule], resolved: TuneConfig
) -> tuple[OpConfig, ...]:
    unasked = resolved.op[op.key]
    stated = [rule for rule in rules if rule.level != "global"]
    decided = any(rule.level in ("constraint", "position", "name") for rule in stated)
    found: list[OpConfig] = [unasked]
    if not unasked.is_float:
        asked = asked_mode(rules, op)
        for mode in modes_of(request, asked):
            table = Table(capability, op, mode, excluded_names(capability, request))
            found += _in_mode(table, wishes(stated, op, mode, capability))
        if request.precision is not None and not any(rule.level == "name" for rule in stated):
            found = [config for config in found if _is_as_wide(config, unasked)]
        if not decided:
            found += _floats(capability, op, excluded_names(capability, request))
    return tuple(dict.fromkeys(found))


def _in_mode(table: Table, merged: Wishes) -> Iterable[OpConfig]:
    """Every pair of data types that a section has, with every combination of what else is asked; the rest as there."""
    if not table.entries or float_type(merged.get("weight.dtype")) or float_type(merged.get("activation.dtype")):
        return
    wished = {name: wish for name, wish in merged.items() if name != "section"}
    choices = {f"{tensor}.dtype": _types(table, tensor, wished.get(f"{tensor}.dtype")) for tensor in _tensors(table)}
    choices |= {name: wish.values for name, wish in wished.items() if name not in choices}
    for values in product(*choices.values()):
        one = {name: Asked((value,), _SOURCE, True, by_width=True) for name, value in zip(choices, values, strict=True)}
        try:
            section, trial = choose_section(table, one)
            yield build_config(table, section, trial)[0]
        except ConfigError:
            continue  # no section has all of this: it is not one of the alternatives


def _tensors(table: Table) -> list[str]:
    return [tensor for tensor in ("weight", "activation") if table.lists(tensor)]


def _types(table: Table, tensor: str, asked: Asked | None) -> Sequence[str]:
    """The data types that are asked for, else the default of each section, of these integers of two bits or more."""
    if asked is not None:
        floats = {name for name, data_type in registered_dtypes().items() if data_type.is_float}
        return [value for value in asked.values if value not in floats]
    defaults = [table.default(lists, "dtype") for lists in table.lists(tensor)]
    named = list(dict.fromkeys(name for name in defaults if name is not None))
    integers = [name for name in named if dtype(name).kind == "integer" and dtype(name).bits >= _NARROWEST]
    return integers or named


def _is_as_wide(config: OpConfig, floor: OpConfig) -> bool:
    pairs = ((config.weight, floor.weight), (config.activation, floor.activation))
    return config == floor or all(_bits(one) >= _bits(other) for one, other in pairs)


def _bits(spec: TensorSpec | None) -> int:
    return 32 if spec is None else spec.dtype.bits


def _floats(capability: Capability, op: OpInfo, excluded: Set[str]) -> Iterable[OpConfig]:
    """From narrow to wide."""
    listed = [name for name in capability.floats if name not in excluded and capability.allows_float(op.type, name)]
    return [float_config(op, name) for name in sorted(listed, key=lambda name: dtype(name).bits)]
