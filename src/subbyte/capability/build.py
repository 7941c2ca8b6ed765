"""From a located tree to a Capability: every key and value is checked, and named with its line."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from subbyte.calibration import parse_algorithm
from subbyte.capability.checks import check_keys, mapping_at, texts_at, unknown
from subbyte.capability.constraints import read_constraints
from subbyte.capability.op_types import check_op_type
from subbyte.capability.registries import registered
from subbyte.capability.schema import (
    ANY,
    FIELDS,
    TENSORS,
    Capability,
    OpCapability,
    Section,
    TensorCapability,
    Unsupported,
    base_name,
)
from subbyte.capability.source import Located, Place
from subbyte.dtypes import DataType, all_or_none, register_dtype, registered_dtypes
from subbyte.errors import CapabilityError, SubbyteError, listing, nearest, quoted
from subbyte.spec import ACCUMULATORS, Granularity, QuantMode

TOP_KEYS = (
    "extends",
    "version",
    "dtypes",
    "default",
    "capabilities",
    "fusions",
    "constraints",
    "strict",
    "unsupported",
)
_LONGEST_NAME = 200  # characters
DEFAULT = "default"
"""The request for each op's default precision; no section has this name."""


def build(tree: Located, name: str) -> Capability:
    """Check a merged description and make it a Capability; its data types are registered.

    Args:
        tree: the whole description, with nothing left to extend.
        name: used where `version` gives none.

    Raises:
        CapabilityError: with file and line, the key, what is allowed and the nearest spelling.
    """
    with all_or_none():  # a file that is refused leaves none of its data types behind
        return _checked(tree, name)


def _checked(tree: Located, name: str) -> Capability:
    check_keys(tree, TOP_KEYS)
    dtypes = _data_types(mapping_at(tree, "dtypes"))
    capabilities = mapping_at(tree, "capabilities")
    if not capabilities:
        raise CapabilityError(
            f"{tree.at('capabilities')}: it needs capabilities: {{section: {{mode: {{op type: ...}}}}}}"
        )
    if DEFAULT in capabilities:
        raise CapabilityError(
            f"{capabilities.at(DEFAULT)}: a section cannot be named {DEFAULT!r}, which requests every op's default "
            "precision; choose another name"
        )
    sections, floats = _sections(capabilities)
    partial = Capability(name, "", sections, floats)
    return Capability(
        name=_version(tree, name),
        default=_default(tree, sections, floats),
        sections=sections,
        floats=floats,
        fusions=_fusions(tree),
        strict=_strict(tree),
        unsupported=_unsupported(tree),
        constraints=read_constraints(tree, partial),
        dtypes=dtypes,
        source=tree.place.file,
        places=_places(capabilities, sections),
        list_places={name: capabilities.at(name) for name in floats} | {"fusions": tree.at("fusions")},
    )


def _version(tree: Located, name: str) -> str:
    version = mapping_at(tree, "version")
    check_keys(version, ["name"], "version")
    if "name" not in version:
        return name
    found = version["name"]
    if not isinstance(found, str) or len(found) > _LONGEST_NAME or not found.isprintable():
        raise CapabilityError(
            f"{version.at('name')}: version: name: expected a name of at most {_LONGEST_NAME} characters, none of them "
            f"a control character, found {quoted(found)}"
        )
    return found


def _default(tree: Located, sections: Iterable[str], floats: Iterable[str]) -> str:
    choices = [*sections, *floats]
    if "default" in tree:
        if tree["default"] not in choices:
            raise unknown(
                tree.at("default"), f"section {quoted(tree['default'])} as default", str(tree["default"]), choices
            )
        return str(tree["default"])
    quantized = list(sections)
    if len(quantized) != 1:
        raise CapabilityError(
            f"{tree.place}: the key 'default' is missing: the section that an op gets by default, as in "
            f"'default: {choices[0]}' (sections: {listing(choices)})"
        )
    return quantized[0]


def _data_types(entries: Located) -> dict[str, DataType]:
    found = {}
    for name, fields in entries.items():
        try:
            found[name] = register_dtype(DataType.from_dict(name, fields))
        except SubbyteError as error:
            place = _key_place(fields, str(error)) or entries.at(name)
            raise CapabilityError(f"{place}: {error}") from None
        _check_algorithm(found[name].algorithm, fields.at("algorithm"), f"data type {quoted(name)}")
    return found


def _key_place(fields: Any, message: str) -> Place | None:
    """The line of the key that a message of the data type is about, where it names one."""
    match = re.search(r"unknown key '([^']*)'", message)
    return fields.at(match[1]) if match and isinstance(fields, Located) else None


def _sections(capabilities: Located) -> tuple[dict[str, Section], dict[str, tuple[str, ...]]]:
    sections: dict[str, Section] = {}
    floats: dict[str, tuple[str, ...]] = {}
    built: dict[int, OpCapability] = {}  # an aliased entry is checked once
    for name, value in capabilities.items():
        data_type = registered_dtypes().get(name)
        if data_type is not None and data_type.is_float:
            floats[name] = texts_at(capabilities, name)
            for op_type in set(floats[name]) - {ANY}:
                check_op_type(op_type, capabilities.at(name), f"section {quoted(name)}")
        elif isinstance(value, Located):
            sections[name] = _section(value, name, built)
        else:
            raise CapabilityError(
                f"{capabilities.at(name)}: section {quoted(name)}: expected {{mode: {{op type: ...}}}}, "
                f"found {quoted(value)}"
                + (
                    ""
                    if not isinstance(value, list)
                    else f"; only a float type lists op types{nearest(name, ['fp32'])}"
                )
            )
    return sections, floats


def _section(value: Located, name: str, built: dict[int, OpCapability]) -> Section:
    check_keys(value, get_args(QuantMode), f"section {quoted(name)}")
    section: dict[QuantMode, dict[str, OpCapability]] = {}
    for mode in get_args(QuantMode):
        entries = mapping_at(value, mode)
        if mode not in value:
            continue
        section[mode] = {}
        for op_type in entries:
            check_op_type(op_type, entries.at(op_type), f"{name}, {mode}")
            entry = mapping_at(entries, op_type)
            if id(entry) not in built:
                built[id(entry)] = _op(entry, f"{name}, {mode}, {op_type}")
            section[mode][op_type] = built[id(entry)]
    return section


def _op(entry: Located, inside: str) -> OpCapability:
    check_keys(entry, [*TENSORS, "accumulator"], inside)
    if not any(name in entry for name in TENSORS):
        raise CapabilityError(f"{entry.place}: {inside}: it needs a weight or an activation")
    accumulator = entry.get("accumulator")
    if accumulator not in (None, *ACCUMULATORS):
        raise unknown(entry.at("accumulator"), f"accumulator {quoted(accumulator)}", str(accumulator), ACCUMULATORS)
    tensors = {name: _tensor(mapping_at(entry, name), f"{inside}, {name}") for name in TENSORS if name in entry}
    return OpCapability(**tensors, accumulator=accumulator, place=entry.place)


def _tensor(fields: Located, inside: str) -> TensorCapability:
    check_keys(fields, FIELDS, inside)
    lists: dict[str, tuple[str, ...]] = {}
    for name in FIELDS:
        if name in fields:
            lists[name] = _field(fields, name, inside)
        elif name != "scale_format":
            raise CapabilityError(
                f"{fields.place}: {inside}: the key {quoted(name)} is missing (needed: {', '.join(FIELDS[:4])})"
            )
    return TensorCapability(**lists, place=fields.place)


def _field(fields: Located, name: str, inside: str) -> tuple[str, ...]:
    values = texts_at(fields, name)
    known = registered(name)
    wild = (ANY,) if name in ("dtype", "scheme", "algorithm") else ()
    for value in (value for value in values if value not in wild):
        if (base_name(value) if name in ("granularity", "algorithm") else value) not in known:
            raise unknown(fields.at(name), f"{name} {quoted(value)} in {inside}", value, [*known, *wild])
        if name == "algorithm":
            _check_algorithm(value, fields.at(name), inside)
    if name == "granularity":
        return _granularities(values, fields.at(name), inside)
    if name != "dtype" and values[0] == ANY:
        raise CapabilityError(f"{fields.at(name)}: {inside}: the first {name} is the default and cannot be '*'")
    return values


def _check_algorithm(text: str, place: Place, inside: str) -> None:
    try:
        parse_algorithm(text)
    except SubbyteError as error:
        raise CapabilityError(f"{place}: {inside}: {error}") from None


def _granularities(values: tuple[str, ...], place: Place, inside: str) -> tuple[str, ...]:
    if values[0] == "per_group":
        raise CapabilityError(
            f"{place}: {inside}: the first granularity is the default: give a size, as in per_group(32)"
        )
    try:
        return tuple(value if value == "per_group" else str(Granularity.parse(value)) for value in values)
    except SubbyteError as error:
        raise CapabilityError(f"{place}: {inside}: {error}") from None


def _strict(tree: Located) -> bool:
    strict = tree.get("strict", False)
    if not isinstance(strict, bool):
        raise CapabilityError(f"{tree.at('strict')}: strict: expected true or false, found {quoted(strict)}")
    return strict


def _unsupported(tree: Located) -> Unsupported:
    unsupported = tree.get("unsupported", "error")
    if unsupported not in get_args(Unsupported):
        raise unknown(tree.at("unsupported"), f"unsupported: {unsupported!r}", str(unsupported), get_args(Unsupported))
    found: Unsupported = unsupported
    return found


def _places(capabilities: Located, sections: Mapping[str, Section]) -> dict[tuple[str, QuantMode, str], Place]:
    return {
        (name, mode, op_type): capabilities[name][mode].at(op_type)
        for name, section in sections.items()
        for mode, ops in section.items()
        for op_type in ops
    }


def _fusions(tree: Located) -> tuple[tuple[str, ...], ...]:
    fusions = tree.get("fusions", [])
    well_formed = isinstance(fusions, list) and all(
        isinstance(group, list) and group and all(isinstance(op, str) for op in group) for group in fusions
    )
    if not well_formed:
        raise CapabilityError(
            f"{tree.at('fusions')}: fusions: expected lists of op types, as in [[Linear, ReLU]], "
            f"found {quoted(fusions)}"
        )
    for op_type in (op for group in fusions for op in group):
        check_op_type(op_type, tree.at("fusions"), "fusions")
    return tuple(tuple(group) for group in fusions)
