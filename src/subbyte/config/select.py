"""Which section of a capability serves what is asked of an op, and the specs that come of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from subbyte.calibration import algorithm_of
from subbyte.capability import ANY, FIELDS, TENSORS, Capability, OpCapability, TensorCapability
from subbyte.config.asked import Asked, Wishes
from subbyte.config.methods import method_by_width
from subbyte.dtypes import dtype
from subbyte.errors import ConfigError, SubbyteError, listing, nearest
from subbyte.numerics import scheme_of
from subbyte.spec import OpConfig, OpInfo, QuantMode, TensorSpec

Sources = dict[str, str]


@dataclass(frozen=True)
class Table:
    """What a capability lists for one op type in one mode, by section, less what a request excludes."""

    capability: Capability
    op: OpInfo
    mode: QuantMode
    excluded: frozenset[str] = frozenset()

    @cached_property
    def _all(self) -> dict[str, OpCapability]:
        return self.capability.entries(self.op.type, self.mode)

    @cached_property
    def entries(self) -> dict[str, OpCapability]:
        """By section, without those that are excluded."""
        return {section: entry for section, entry in self._all.items() if section not in self.excluded}

    def lists(self, tensor: str) -> list[TensorCapability]:
        """The lists of every section for one tensor."""
        return [lists for entry in self._all.values() if (lists := entry.tensor(tensor)) is not None]

    def allows(self, entry: OpCapability, name: str, value: Any) -> bool:
        """Whether an entry allows a value of `tensor.field`; what is not listed (axis, range) is free."""
        tensor, field = name.split(".")
        lists = entry.tensor(tensor)
        if lists is None or value in self.excluded:
            return False
        if field not in FIELDS:
            return True
        siblings = self.capability.siblings(self.op.type, self.mode, tensor)
        return self.capability.allows(lists, siblings, field, value)

    def default(self, lists: TensorCapability, field: str) -> str | None:
        """The default of a field: the first of its list that is neither `*` nor excluded."""
        first = lists.options(field)
        if field == "dtype" and first[0] == ANY:
            return None
        return next((value for value in first if value != ANY and value not in self.excluded), None)

    def __str__(self) -> str:
        return f"op {self.op.name!r} ({self.op.type})"


def default_section(table: Table) -> tuple[str | None, str]:
    """The section of an op of which nothing is asked, or None and why it stays float."""
    capability, section = table.capability, table.capability.default
    if section in table.excluded:
        return None, f"excluded_precisions (default section {section!r})"
    entry = capability.op(section, table.mode, table.op.type) if section in capability.sections else None
    if section in capability.floats:
        return None, f"capability {capability.name}: default {section!r}"
    if entry is None:
        return None, f"capability {capability.name}: default {section!r} has no {table.mode} {table.op.type}"
    for tensor in TENSORS:
        lists = entry.tensor(tensor)
        if lists is not None and (lists.dtype[0] in table.excluded or lists.dtype[0] == ANY):
            return None, f"excluded_precisions ({tensor} {lists.dtype[0]} is the default)"
    return section, ""


def choose_section(table: Table, asked: Wishes) -> tuple[str, Wishes]:
    """The section that serves a request, and the request with the alternative that it takes first.

    The alternatives of the weight's dtype (without one, of the activation's) are tried in order. A tensor of which
    no dtype is asked keeps the one of the default section, where any section allows that beside what is asked. Of
    several sections that serve: the one that is named, the one of that dtype's name, the default, any if
    all come to the same.

    Raises:
        ConfigError: none serves (says what is not allowed, and what is), or it is ambiguous.
    """
    fields = {name: wish for name, wish in asked.items() if name != "section"}
    lead = next((name for name in ("weight.dtype", "activation.dtype") if name in fields), None)
    pinned = asked["section"].values[0] if "section" in asked else None
    for value in fields[lead].values if lead else (None,):
        trial = fields
        if lead is not None:
            trial = fields | {lead: replace(fields[lead], values=(value,))}
        trial = _with_default_types(table, trial)
        candidates = [section for section, entry in table.entries.items() if _serves(table, entry, trial)]
        if pinned is not None and pinned not in candidates and _insists_on(asked["section"], lead, asked):
            continue
        for favourite in (pinned, value, table.capability.default):
            if favourite in candidates:
                return favourite, trial
        if candidates:
            return _unanimous(table, candidates, trial), trial
    raise _refusal(table, asked)


def _with_default_types(table: Table, fields: Wishes) -> Wishes:
    """The request with the default dtype of each tensor that it says nothing of, where that can be had."""
    default = table.capability.default
    entry = table.entries.get(default)
    if entry is None or not any(name.endswith(".dtype") for name in fields):
        return fields
    unasked: Wishes = {}
    for tensor in TENSORS:
        lists = entry.tensor(tensor)
        name = table.default(lists, "dtype") if lists is not None and f"{tensor}.dtype" not in fields else None
        if name is not None:
            unasked[f"{tensor}.dtype"] = Asked((name,), f"default section {default!r}", False)
    whole = fields | unasked
    return whole if any(_serves(table, each, whole) for each in table.entries.values()) else fields


def _insists_on(section: Asked, lead: str | None, asked: Wishes) -> bool:
    """Whether the rule that named a section still decides: no later one named another data type."""
    return lead is None or asked[lead].source == section.source


def _serves(table: Table, entry: OpCapability, fields: Wishes) -> bool:
    return _has_defaults(table, entry, fields) and all(
        any(table.allows(entry, name, value) for value in wish.values) for name, wish in fields.items()
    )


def _has_defaults(table: Table, entry: OpCapability, fields: Wishes) -> bool:
    """Whether every tensor's data type is asked for or has a default."""
    tensors = {tensor: entry.tensor(tensor) for tensor in TENSORS if f"{tensor}.dtype" not in fields}
    return all(lists is None or table.default(lists, "dtype") is not None for lists in tensors.values())


def _unanimous(table: Table, candidates: list[str], fields: Wishes) -> str:
    stated = {name: replace(wish, by_width=False) for name, wish in fields.items()}  # a method by width is no request
    configs = [build_config(table, section, stated)[0] for section in candidates]
    if any(config != configs[0] for config in configs):
        asked = ", ".join(f"{name} {'/'.join(map(str, wish.values))}" for name, wish in fields.items())
        raise ConfigError(
            f"{table}: {asked} is ambiguous: the sections {', '.join(map(repr, candidates))} of "
            f"{table.capability.name} all allow it and give different configurations; ask for one by name, "
            "or for both a weight and an activation dtype"
        )
    return candidates[0]


def build_config(table: Table, section: str, asked: Mapping[str, Any]) -> tuple[OpConfig, Sources]:
    """What an op gets of a section: the fields that are asked, the others at their defaults.

    The default algorithm is the first of the list; but a dtype that is not the first of its own list
    brings the algorithm that its data type names (bint1: mean_abs), where the list has it. A dtype of a shorthand
    replaces `minmax` by the method that suits its width, where the list has that.

    Raises:
        ConfigError: the fields contradict each other.
    """
    entry = table.entries[section]
    specs: dict[str, TensorSpec] = {}
    sources: Sources = {"section": asked["section"].source if "section" in asked else f"section {section!r}"}
    for tensor in TENSORS:
        lists = entry.tensor(tensor)
        if lists is None:
            continue
        fields, origin = _tensor_fields(table, entry, tensor, section, asked)
        sources |= {f"{tensor}.{name}": text for name, text in origin.items()}
        try:
            specs[tensor] = TensorSpec(**fields)
            algorithm_of(specs[tensor])
            scheme_of(specs[tensor])
        except SubbyteError as error:
            raise ConfigError(f"{table}: {tensor}: {error}") from None
    return OpConfig(**specs, quant_mode=table.mode, accumulator=entry.accumulator), sources


def _tensor_fields(
    table: Table, entry: OpCapability, tensor: str, section: str, asked: Mapping[str, Any]
) -> tuple[dict[str, Any], Sources]:
    lists = entry.tensor(tensor)
    assert lists is not None  # the caller asks only for tensors that the entry has
    fields: dict[str, Any] = {}
    origin: Sources = {}
    for name in FIELDS:
        fields[name] = table.default(lists, name)
        origin[name] = f"capability {lists.place} (default of section {section!r})"
    for key, wish in asked.items():
        if key.startswith(f"{tensor}."):
            name = key.split(".")[1]
            fields[name] = next(value for value in wish.values if table.allows(entry, key, value))
            origin[name] = wish.source
    own = dtype(fields["dtype"]).algorithm
    takes_own = fields["dtype"] != lists.dtype[0] and f"{tensor}.algorithm" not in asked
    if takes_own and own != fields["algorithm"] and table.allows(entry, f"{tensor}.algorithm", own):
        fields["algorithm"], origin["algorithm"] = own, f"data type {fields['dtype']}"
    suited = _method_by_width(table, tensor, fields, asked)
    if suited is not None and table.allows(entry, f"{tensor}.algorithm", suited):
        fields["algorithm"], origin["algorithm"] = suited, f"width of {fields['dtype']} (instead of minmax)"
    return fields, origin


def _method_by_width(table: Table, tensor: str, fields: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """The calibration method that takes the place of `minmax`, which nothing asks for."""
    wish = asked.get(f"{tensor}.dtype")
    if wish is None or not wish.by_width or f"{tensor}.algorithm" in asked or fields["algorithm"] != "minmax":
        return None
    return method_by_width(tensor, dtype(fields["dtype"]), table.mode)


def _refusal(table: Table, asked: Wishes) -> ConfigError:
    """Why no section serves: a field that none allows, or fields that none allows together."""
    fields = {name: wish for name, wish in asked.items() if name != "section"}
    free = replace(table, excluded=frozenset())
    if table.excluded and any(_serves(free, entry, fields) for entry in free.entries.values()):
        return ConfigError(
            f"{table}: excluded_precisions ({listing(table.excluded)}) leave nothing that {table.capability.name} "
            f"allows for {_together(fields)} in {table.mode} mode; exclude less, or name another precision"
        )
    for name, wish in fields.items():
        if not any(table.allows(entry, name, value) for entry in table.entries.values() for value in wish.values):
            return _not_allowed(table, name, wish.values, wish.source)
    if "section" in asked and asked["section"].values[0] not in table.entries:
        section = asked["section"]
        return ConfigError(
            f"{table}: {section.source} means section {section.values[0]!r}, which has no {table.mode} "
            f"{table.op.type} (sections that have: {listing(table.entries)})"
        )
    if "section" in asked and not _has_defaults(table, table.entries[asked["section"].values[0]], fields):
        return ConfigError(
            f"{table}: {asked['section'].source} means a section that has no data type of its own ('*'); "
            "ask for a data type"
        )
    return ConfigError(
        f"{table}: no section of {table.capability.name} allows all of this in {table.mode} mode: "
        f"{_together(fields)}. " + "; ".join(_objections(table, fields))
    )


def _together(fields: Wishes) -> str:
    return ", ".join(f"{name} {'/'.join(map(str, wish.values))} ({wish.source})" for name, wish in fields.items())


def _objections(table: Table, fields: Wishes) -> Iterable[str]:
    """For the sections that allow the first field, what they say of the others."""
    first, *others = fields
    for section, entry in table.entries.items():
        if any(table.allows(entry, first, value) for value in fields[first].values):
            refused = [n for n in others if not any(table.allows(entry, n, v) for v in fields[n].values)]
            for name in refused:
                lists = entry.tensor(name.split(".")[0])
                allowed = lists.options(name.split(".")[1]) if lists else ["nothing: it is not quantized"]
                yield f"section {section!r} allows for {name}: {', '.join(allowed)}"


def _not_allowed(table: Table, name: str, values: Iterable[Any], source: str) -> ConfigError:
    tensor, field = name.split(".")
    listed = table.lists(tensor)
    where = f"{table}: {source}"
    if not listed:
        hint = f"; in {table.mode} mode no section quantizes its {tensor}"
        other = [mode for mode in table.capability.modes(table.op.type) if _has(table, mode, tensor)]
        hint += f" (quant_mode {listing(other)} does)" if other else ""
        return ConfigError(f"{where} asks for {name} {'/'.join(map(str, values))}{hint}")
    allowed = {option for lists in listed for option in lists.options(field) if option != ANY} - table.excluded
    wanted = "/".join(map(str, values))
    return ConfigError(
        f"{where} asks for {name} {wanted!r}, which {table.capability.name} does not list for "
        f"{table.op.type} in {table.mode} mode{nearest(wanted, allowed)} (allowed: {listing(allowed)})"
    )


def _has(table: Table, mode: QuantMode, tensor: str) -> bool:
    return any(entry.tensor(tensor) for entry in table.capability.entries(table.op.type, mode).values())
