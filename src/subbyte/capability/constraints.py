"""Reading `constraints`: which ops, and the precision that they must have."""

from collections.abc import Iterable
from typing import get_args

from subbyte.capability.checks import check_keys, mapping_at, texts_at, unknown
from subbyte.capability.schema import Capability, Constraint
from subbyte.capability.shorthand import parse_shorthand
from subbyte.capability.source import Located
from subbyte.dtypes import registered_dtypes
from subbyte.errors import CapabilityError, SubbyteError, listing, nearest, quoted
from subbyte.spec import Position
from subbyte.spec.patterns import PatternError, compiled


def read_constraints(tree: Located, capability: Capability) -> tuple[Constraint, ...]:
    """Read the `constraints` of a description.

    Args:
        tree: the whole description.
        capability: with the sections and op types that constraints may name.

    Raises:
        CapabilityError: with the line.
    """
    items = tree.get("constraints", [])
    if not isinstance(items, list) or not all(isinstance(item, Located) for item in items):
        raise CapabilityError(
            f"{tree.at('constraints')}: constraints: expected a list of "
            f"{{where: {{...}}, precision: ...}}, found {quoted(items)}"
        )
    return tuple(_constraint(item, capability) for item in items)


def _constraint(item: Located, capability: Capability) -> Constraint:
    check_keys(item, ["where", "precision"], "a constraint")
    for key in ("where", "precision"):
        if key not in item:
            raise CapabilityError(f"{item.place}: a constraint needs {quoted(key)}: {{where: {{...}}, precision: ...}}")
    where = mapping_at(item, "where")
    check_keys(where, ["position", "op", "name", "depthwise"], "where")
    lists = {key: texts_at(where, key) for key in ("position", "op", "name") if key in where}
    _check_members(where, "position", lists.get("position", ()), get_args(Position))
    _check_members(where, "op", lists.get("op", ()), capability.op_types())
    _check_patterns(where, lists.get("name", ()))
    depthwise = where.get("depthwise")
    if depthwise is not None and not isinstance(depthwise, bool):
        raise CapabilityError(f"{where.at('depthwise')}: depthwise: expected true or false, found {quoted(depthwise)}")
    precision = _precision(item, capability)
    return Constraint(precision, depthwise=depthwise, place=item.place, **lists)  # type: ignore[arg-type]


def _check_members(where: Located, key: str, values: Iterable[str], allowed: Iterable[str]) -> None:
    choices = list(allowed)
    for value in values:
        if value not in choices:
            raise unknown(where.at(key), f"{key} {quoted(value)} in where", value, choices)


def _check_patterns(where: Located, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            compiled(pattern)
        except PatternError as error:
            raise CapabilityError(f"{where.at('name')}: name {quoted(pattern)}: {error}") from None


def _precision(item: Located, capability: Capability) -> str:
    precision = item["precision"]
    place = item.at("precision")
    if not isinstance(precision, str):
        raise CapabilityError(f"{place}: precision: expected a name, found {quoted(precision)}")
    names = {**capability.sections, **registered_dtypes()}
    if precision not in names:
        try:
            parse_shorthand(precision)
        except SubbyteError as error:
            hint = nearest(precision, names)
            known = listing(capability.sections)
            raise CapabilityError(
                f"{place}: unknown precision {quoted(precision)}{hint} (sections: {known}; {error})"
            ) from None
    return precision
