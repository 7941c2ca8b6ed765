"""What operators can do, as plain data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from subbyte.capability.registries import registered
from subbyte.capability.source import Place
from subbyte.dtypes import DataType
from subbyte.errors import CapabilityError, quoted
from subbyte.spec import OpInfo, Position, QuantMode
from subbyte.spec.patterns import NamePatterns, PatternError

Tensor = Literal["weight", "activation", "output"]
Unsupported = Literal["error", "float"]

TENSORS: tuple[Tensor, ...] = ("weight", "activation", "output")
Slot = tuple[str, str, str]  # mode, op type, tensor
FIELDS = ("dtype", "scheme", "granularity", "algorithm", "scale_format")
ANY = "*"


def base_name(text: str) -> str:
    """`per_group` of `per_group(32)`, `percentile` of `percentile(99.9)`."""
    return text.split("(", 1)[0]


@dataclass(frozen=True)
class TensorCapability:
    """The allowed values of each field of one tensor's spec; the first of a list is its default.

    A name without an argument allows any: `per_group` every group size, `percentile` every percentage.
    `*` stands for every registered one that no section names for that tensor of that op type and mode,
    so that a user's own type or algorithm needs no entry. A dtype list that starts with `*` has no default.
    """

    dtype: tuple[str, ...]
    scheme: tuple[str, ...]
    granularity: tuple[str, ...]
    algorithm: tuple[str, ...]
    scale_format: tuple[str, ...] = ("fp32",)
    place: Place = field(default=Place("capability"), compare=False)

    def options(self, name: str) -> tuple[str, ...]:
        """The list of one field."""
        values: tuple[str, ...] = getattr(self, name)
        return values

    def names(self, name: str, value: str) -> bool:
        """Whether the list of a field names a value (not counting `*`)."""
        return value in self.options(name) or base_name(value) in self.options(name)


@dataclass(frozen=True)
class OpCapability:
    """What one op type can do in one section and mode. A tensor that is None is not quantized.

    Args:
        weight, activation, output: the tensors.
        accumulator: the width in which the op sums its products; None where that is not limited.
    """

    weight: TensorCapability | None = None
    activation: TensorCapability | None = None
    output: TensorCapability | None = None
    accumulator: str | None = None
    place: Place = field(default=Place("capability"), compare=False)

    def tensor(self, name: str) -> TensorCapability | None:
        """One of `weight`, `activation`, `output`."""
        found: TensorCapability | None = getattr(self, name)
        return found


@dataclass(frozen=True)
class Constraint:
    """A precision that the ops of a description must have; what is left out matches every op.

    Args:
        precision: a section, a float type, a shorthand such as `w4a8`, or a data type (of the weight).
        position: any of these.
        op: any of these op types.
        name: full-match regular expressions, any of which the op's name matches.
        depthwise: whether the op is a depthwise convolution.
    """

    precision: str
    position: tuple[Position, ...] = ()
    op: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    depthwise: bool | None = None
    place: Place = field(default=Place("capability"), compare=False)

    def applies_to(self, op: OpInfo, patterns: NamePatterns) -> bool:
        """Return whether every part of the description holds for an op.

        Args:
            patterns: limits the time of all matches of one resolution.

        Raises:
            CapabilityError: the patterns of the constraints take too long to match.
        """
        return (
            (not self.position or bool(op.positions & set(self.position)))
            and (not self.op or op.type in self.op)
            and (not self.name or any(self._matches(pattern, op, patterns) for pattern in self.name))
            and (self.depthwise is None or op.depthwise == self.depthwise)
        )

    def _matches(self, pattern: str, op: OpInfo, patterns: NamePatterns) -> bool:
        try:
            return patterns.matches(pattern, op.name, whole=True)
        except PatternError as error:
            raise CapabilityError(f"{self.place}: name {quoted(pattern)}: {error}") from None


Section = Mapping[QuantMode, Mapping[str, OpCapability]]


@dataclass(frozen=True)
class Capability:
    """What the operators of a framework or a chip can do; its lists are the space that tuning searches.

    Args:
        name: of the framework or chip.
        default: the section (or float type) of an op for which nothing is requested.
        sections: section -> mode -> op type -> what it can do.
        floats: float type -> the op types that can stay in it; `*` is all.
        fusions: op types that run as one op.
        strict: whether an op whose sums could overflow its accumulator is refused, not only reported.
        unsupported: what becomes of an op for which neither a precision nor fp32 is listed: `error`, or `float`,
            which leaves it in fp32 with a warning.
        constraints: precisions that ops must have.
        dtypes: the data types that the file itself describes.
        source: the file it was read from.
        places: by (section, mode, op type), the file and line of the entry.
        list_places: by float type, and under `fusions`, the file and line of the list.
        below: by (mode, op type, tensor), what the files that it extends name: `*` does not stand for that.
    """

    name: str
    default: str
    sections: Mapping[str, Section]
    floats: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fusions: tuple[tuple[str, ...], ...] = ()
    strict: bool = False
    unsupported: Unsupported = "error"
    constraints: tuple[Constraint, ...] = ()
    dtypes: Mapping[str, DataType] = field(default_factory=dict)
    source: str = "capability"
    places: Mapping[tuple[str, QuantMode, str], Place] = field(default_factory=dict, compare=False, repr=False)
    list_places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)
    below: Mapping[Slot, TensorCapability] = field(default_factory=dict, repr=False)

    def op(self, section: str, mode: QuantMode, op_type: str) -> OpCapability | None:
        """What an op type can do; `quant_aware` is `static` unless the section says otherwise."""
        modes = self.sections[section]
        found = modes.get(mode, {}).get(op_type)
        if found is None and mode == "quant_aware":
            return modes.get("static", {}).get(op_type)
        return found

    def entries(self, op_type: str, mode: QuantMode) -> dict[str, OpCapability]:
        """By section, what an op type can do in a mode."""
        found = {section: self.op(section, mode, op_type) for section in self.sections}
        return {section: entry for section, entry in found.items() if entry is not None}

    def siblings(self, op_type: str, mode: QuantMode, tensor: str) -> list[TensorCapability]:
        """What every section, and every file below, names for one tensor of an op type in a mode."""
        lists = [entry.tensor(tensor) for entry in self.entries(op_type, mode).values()]
        return [found for found in [*lists, self.below.get((mode, op_type, tensor))] if found is not None]

    def modes(self, op_type: str) -> tuple[QuantMode, ...]:
        """The modes in which some section knows an op type."""
        given = {mode for section in self.sections.values() for mode, ops in section.items() if op_type in ops}
        order: tuple[QuantMode, ...] = ("static", "dynamic", "weight_only", "quant_aware")
        return tuple(mode for mode in order if mode in given)

    def tensors(self, op_type: str) -> frozenset[str]:
        """The tensors of an op type that some section quantizes in some mode."""
        entries = [entry for mode in self.modes(op_type) for entry in self.entries(op_type, mode).values()]
        return frozenset(name for name in TENSORS if any(entry.tensor(name) for entry in entries))

    def op_types(self) -> frozenset[str]:
        """Every op type that is named."""
        named = {op for section in self.sections.values() for ops in section.values() for op in ops}
        named |= {op for ops in self.floats.values() for op in ops} - {ANY}
        return frozenset(named)

    def allows(self, entry: TensorCapability, siblings: Iterable[TensorCapability], name: str, value: str) -> bool:
        """Whether an entry allows a value of a field.

        Args:
            entry: of one section.
            siblings: the entries of every section for the same tensor, op type and mode; those below too.
        """
        if entry.names(name, value):
            return True
        if ANY not in entry.options(name) or base_name(value) not in registered(name):
            return False
        return not any(sibling.names(name, value) for sibling in siblings)

    def allows_float(self, op_type: str, dtype: str) -> bool:
        """Whether the capability lists an op type for a float type."""
        ops = self.floats.get(dtype, ())
        return ANY in ops or op_type in ops

    def first_listed(self, op_type: str, mode: QuantMode) -> str | None:
        """The default section if it lists the op type in this mode, else the first section that does.

        None if no section does, or if the default is a float type that lists the op type.
        """
        if self.allows_float(op_type, self.default):
            return None
        listed = self.entries(op_type, mode)
        return self.default if self.default in listed else next(iter(listed), None)
