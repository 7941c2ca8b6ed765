"""What is asked of one op, once its rules lie over each other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from subbyte.capability import ANY, DEFAULT, TENSORS, Capability, OpCapability
from subbyte.config.fields import Values
from subbyte.config.rules import Rule, has_tensor
from subbyte.dtypes import registered_dtypes
from subbyte.errors import ConfigError
from subbyte.spec import OpInfo, QuantMode


@dataclass(frozen=True)
class Asked:
    """The alternatives for one field, the rule that named them, and whether that rule insists.

    Where `by_width` is true, a data type among the values brings the calibration method that suits its width.
    """

    values: Values
    source: str
    insists: bool
    by_width: bool = False


Wishes = dict[str, Asked]


def asked_mode(rules: Sequence[Rule], op: OpInfo) -> Asked | None:
    """The mode that the strongest rule names, if one does."""
    named = [rule for rule in rules if "quant_mode" in rule.fields]
    if not named:
        return None
    rule = named[-1]
    return Asked(rule.fields["quant_mode"], rule.source, _insists(rule, op))


def wishes(rules: Sequence[Rule], op: OpInfo, mode: QuantMode, capability: Capability) -> Wishes:
    """Merge rules, weakest first, field by field; what a constraint says holds whatever is asked after it.

    Returns:
        By `tensor.field` what is asked; under `section` the section that is meant, if one is named.

    Raises:
        ConfigError: a type, position or name contradicts a constraint, or a tensor is asked for that the op has not.
    """
    merged: Wishes = {}
    constrained: Wishes = {}
    requested: Wishes = {}
    for rule in rules:
        said = _said(rule, op, mode, capability)
        if rule.whole:
            merged.clear()
            requested.clear()
        merged.update(said)
        if rule.level == "constraint":
            constrained = _stated(rule, said) if rule.whole else constrained | said
        elif rule.level != "global":
            requested.update(_stated(rule, said))
    forgotten = {name: wish for name, wish in constrained.items() if name not in requested}
    return merged | forgotten | _agreed(requested, constrained, op)


def float_type(asked: Asked | None, among: bool = False) -> str | None:
    """The float type that is asked for first (or `among` the alternatives), if one is."""
    floats = {name for name, data_type in registered_dtypes().items() if data_type.is_float}
    values = asked.values if asked is not None else ()
    return next((value for value in (values if among else values[:1]) if value in floats), None)


def _insists(rule: Rule, op: OpInfo) -> bool:
    return rule.insists == "all" or (rule.insists == "multiplying" and op.role != "other")


def _said(rule: Rule, op: OpInfo, mode: QuantMode, capability: Capability) -> Wishes:
    """The fields of a rule that speak of this op, a section's name spelt out as its data types."""
    fields: dict[str, Values] = {}
    section = capability.first_listed(op.type, mode) if rule.section == DEFAULT else rule.section
    if section is not None:
        fields |= {"section": (section,)} | _of_section(capability.op(section, mode, op.type))
    for name, values in rule.fields.items():
        tensor = name.split(".")[0]
        if name == "quant_mode" or (rule.lenient and not has_tensor(capability, op, tensor)):
            continue
        if tensor == "weight" and op.role != "weighted":
            raise ConfigError(f"{_shown(op)}: {rule.source} asks for a weight, and the op has none")
        fields[name] = values
    return {name: Asked(values, rule.source, _insists(rule, op), rule.by_width) for name, values in fields.items()}


def _of_section(entry: OpCapability | None) -> dict[str, Values]:
    tensors = {tensor: entry.tensor(tensor) for tensor in TENSORS} if entry else {}
    return {
        f"{tensor}.dtype": (lists.dtype[0],) for tensor, lists in tensors.items() if lists and lists.dtype[0] != ANY
    }


def _stated(rule: Rule, said: Wishes) -> Wishes:
    """What is said, and of a shorthand, which states the whole op, that an activation it leaves out is float."""
    if not rule.whole or rule.section is not None or "activation.dtype" in said:
        return said
    return said | {"activation.dtype": Asked(("fp32",), rule.source, insists=False)}


def _agreed(requested: Wishes, constrained: Wishes, op: OpInfo) -> Wishes:
    """What a request and a constraint both speak of: the alternatives that suit both."""
    agreed: Wishes = {}
    for name in (key for key in requested if key in constrained and key != "section"):
        asked, constraint = requested[name], constrained[name]
        common = tuple(value for value in asked.values if value in constraint.values)
        if not common:
            raise ConfigError(
                f"{_shown(op)}: {asked.source} asks for {name} {_alternatives(asked.values)}, but "
                f"{constraint.source} asks for {_alternatives(constraint.values)}; change one of the two"
            )
        narrowed = "" if common == asked.values else f", narrowed by {constraint.source}"
        agreed[name] = replace(asked, values=common, source=asked.source + narrowed)
    return agreed


def _alternatives(values: Values) -> str:
    return " or ".join(map(str, values))


def _shown(op: OpInfo) -> str:
    return f"op {op.name!r} ({op.type})"
