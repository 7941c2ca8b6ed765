"""Rules: what a request and a capability say, each with the text that names it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from subbyte.capability import DEFAULT, FIELDS, Capability, Constraint, check_name, implemented_forms, parse_shorthand
from subbyte.config.fields import Values, parse_fields
from subbyte.config.post_training import PostTrainingQuantConfig
from subbyte.dtypes import registered_dtypes
from subbyte.errors import ConfigError, SubbyteError, listing, nearest
from subbyte.spec import OpInfo, Position
from subbyte.spec.patterns import NamePatterns

Level = Literal["global", "type", "constraint", "position", "name"]


@dataclass(frozen=True)
class Rule:
    """One thing that is said of an op.

    Args:
        source: names it in messages and in `explain`.
        level: who said it.
        fields: by `tensor.field` or `quant_mode`, the alternatives.
        section: the section whose data types are meant.
        whole: it states the whole op (the name of a precision): what was said before is forgotten, but
            for the mode where it says none. Otherwise its fields lie over what was said before.
        lenient: what it says of a tensor that an op does not have is passed over (precisions, patterns).
        insists: on the ops that it speaks of: `all` of them, only those with the role `weighted` or `matmul`
            (patterns), `none`. One that cannot follow is an error; otherwise it is left float.
        multiplying: speaks of the precision of weighted ops and matmuls alone; others take the mode.
        by_position: it is for the first and last ops alone: `first_last`, a recipe, or a constraint by position.
        by_width: it is a shorthand for calibration, whose data types bring the method that suits their width.
    """

    source: str
    level: Level
    fields: Mapping[str, Values]
    section: str | None = None
    whole: bool = False
    lenient: bool = False
    insists: Literal["all", "multiplying", "none"] = "all"
    multiplying: bool = False
    by_position: bool = False
    by_width: bool = False

    @property
    def lowers_precision(self) -> bool:
        """Return whether the rule requests a data type other than fp32 for some tensor."""
        types = [values for name, values in self.fields.items() if name.endswith(".dtype")]
        return self.section not in (None, DEFAULT) or any("fp32" not in values for values in types)


class RuleBook:
    """All rules of a request, checked against a model; `for_op` gives those of one op, weakest first.

    The order is: global precision, constraints of the capability, op types, first/last and recipes,
    op names; within each the order given. What comes after a constraint must agree with it (see `wishes`).

    Raises:
        ConfigError: a key matches nothing, a precision cannot be read or is excluded, or positions are
            asked for where no forward was recorded.
    """

    def __init__(
        self,
        capability: Capability,
        ops: Sequence[OpInfo],
        config: PostTrainingQuantConfig,
        first_last: str | None,
    ) -> None:
        self._capability = capability
        self._patterns = NamePatterns()
        self._config = config
        self._ops = [op for op in ops if op.quantizable or op.positions]
        text = config.precision
        self._global = None if text is None else self._named(text, f"global {text!r}", "global", pattern=True)
        self._check_approach()
        self._types = self._type_rules()
        self._names = self._name_rules()
        self._constraints = [(one, self._constraint(one)) for one in capability.constraints]
        first_last = config.first_last if first_last is None else first_last
        self._first_last = self._first_last_rules(first_last)
        self._recipes = self._recipe_rules(first_last)
        self._check_positions()
        self._check_tensors()
        self._check_spelling()

    def for_op(self, op: OpInfo) -> list[Rule]:
        """The rules that speak of an op, weakest first."""
        rules = [self._global] if self._global else []
        rules += [rule for constraint, rule in self._constraints if constraint.applies_to(op, self._patterns)]
        rules += [rule for types, rule in self._types if op.type in types]
        rules += self._first_last if op.positions else []
        rules += [rule for position, rule in self._recipes if position in op.product_positions]
        rules += [rule for names, rule in self._names if op.name in names]
        return [_mode_alone(rule) if rule.multiplying and op.role == "other" else rule for rule in rules]

    def unimplemented(self) -> dict[str, Rule]:
        """Return the op types that have no quantized form, with the rule that names the type and requests one."""
        return {
            op_type: rule
            for types, rule in self._types
            for op_type in types
            if rule.insists == "all" and rule.lowers_precision and not implemented_forms(op_type)
        }

    def absent(self) -> list[OpInfo]:
        """An op of each type that only rules speak of which speak of no op of the model."""
        present = {op.type for op in self._ops}
        types = {op_type for keys, _ in self._types if keys.isdisjoint(present) for op_type in keys}
        return [self._imagined(op_type) for op_type in sorted(types)]

    def _imagined(self, op_type: str) -> OpInfo:
        weighted = "weight" in self._capability.tensors(op_type)
        return OpInfo("(none in this model)", op_type, "weighted" if weighted else "other", imagined=True)

    def check_names(self) -> None:
        """Refuse a name that no capability knows, which would be an alternative that is never taken.

        Raises:
            ConfigError: with the nearest spelling.
        """
        for _, rule in [*self._types, *self._names]:
            for key, values in rule.fields.items():
                field = key.split(".")[-1]
                for value in values if field in FIELDS else ():
                    try:
                        check_name(field, value)
                    except SubbyteError as error:
                        raise ConfigError(f"{rule.source}: {key}: {error}") from None

    def _named(self, text: str, source: str, level: Level, pattern: bool = False) -> Rule:
        """The rule for a precision's name: a section, a data type, a shorthand."""
        insists: Literal["all", "multiplying", "none"] = "multiplying" if pattern else "all"
        rule = Rule(
            source,
            level,
            {},
            whole=True,
            lenient=True,
            insists="none" if level in ("global", "constraint") else insists,
            multiplying=pattern and level != "name" and text not in _floats(),
            by_position=level == "position",
        )
        self._refuse_excluded([text], source)
        if text in self._capability.sections:
            return replace(rule, section=text)
        if text == DEFAULT:
            return replace(rule, section=text, fields=self._default_modes())
        if text in _floats():
            return replace(rule, fields={"weight.dtype": (text,), "activation.dtype": (text,)})
        if text in registered_dtypes():
            return replace(rule, fields={"weight.dtype": (text,)}, whole=False)
        learns = self._config.approach == "quant_aware"  # training learns ranges
        return replace(rule, fields=self._shorthand(text, source), by_width=not learns)

    def _constraint(self, constraint: Constraint) -> Rule:
        source = f"constraint {constraint.precision!r} ({constraint.place})"
        rule = self._named(constraint.precision, source, "constraint")
        return replace(rule, by_position=bool(constraint.position))

    def _default_modes(self) -> dict[str, Values]:
        """The modes in which a default precision may be, unless the request names another approach."""
        return {"quant_mode": ("static", "dynamic", "weight_only")} if self._config.approach == "static" else {}

    def _shorthand(self, text: str, source: str) -> dict[str, Values]:
        try:
            shorthand = parse_shorthand(text)
        except SubbyteError as error:
            if text.lower().startswith("w"):
                raise ConfigError(f"{source}: {error}") from None
            names = [DEFAULT, *self._capability.sections, *registered_dtypes()]
            raise ConfigError(
                f"{source}: {text!r} names no section of {self._capability.name}, no data type and is no "
                f"shorthand such as w4a8{nearest(text, names)} "
                f"(sections: {listing(self._capability.sections)}; {DEFAULT!r}: the default precision of each op)"
            ) from None
        self._refuse_excluded(filter(None, (shorthand.weight, shorthand.activation)), source)
        fields: dict[str, Values] = {name: (value,) for name, value in shorthand.fields().items()}
        mode: str | None = shorthand.quant_mode
        if mode == "static" and self._config.approach == "quant_aware":
            mode = "quant_aware"  # a shorthand says nothing of training
        elif mode == "static" and self._config.approach in ("dynamic", "auto"):
            # The approach was chosen, while a shorthand without ':dynamic' says nothing. A dynamic
            # activation keeps its default algorithm, which the approach 'auto' only knows later.
            mode = "dynamic" if self._config.approach == "dynamic" else None
            if mode:
                fields.pop("activation.algorithm", None)
        return fields | ({"quant_mode": (mode,)} if mode else {})

    def _refuse_excluded(self, names: Iterable[str], source: str) -> None:
        for name in names:
            if name in self._config.excluded_precisions:
                raise ConfigError(f"{source}: {name!r} is asked for and stands in excluded_precisions too")

    def _rule(self, key: str, value: Any, level: Level, pattern: bool) -> Rule:
        source = f"op_{level}_dict[{key!r}]"
        if isinstance(value, str):
            return self._named(value, source, level, pattern)
        parsed = parse_fields(value, source)
        fields = {name: self._not_excluded(asked, source) for name, asked in parsed.items()}
        # A pattern may match ops with and without a weight; see _check_tensors.
        return Rule(source, level, fields, lenient=pattern, insists="multiplying" if pattern else "all")

    def _not_excluded(self, values: Values, source: str) -> Values:
        kept = tuple(value for value in values if value not in self._config.excluded_precisions)
        if not kept:
            self._refuse_excluded(values, source)
        return kept

    def _known_types(self) -> list[str]:
        return sorted(self._capability.op_types() | {op.type for op in self._ops})

    def _type_rules(self) -> list[tuple[frozenset[str], Rule]]:
        rules = []
        for key, value in self._config.op_type_dict.items():
            types = _matching(key, self._known_types(), f"op_type_dict[{key!r}]", "op type")
            named = types if key in types else self._types_without_weight(key, types)
            if not isinstance(value, str):  # fields apply to every op that has the tensor
                named = types & {key}
            parts = ((types - named, True), (named, False))
            rules += [(part, self._rule(key, value, "type", pattern)) for part, pattern in parts if part]
        return rules

    def _types_without_weight(self, pattern: str, types: frozenset[str]) -> frozenset[str]:
        """Return the types without a weight that a pattern means: all if it matches no others, else those it spells."""
        multiplying = {op.type for op in self._ops if op.role != "other"}
        without = frozenset(types - multiplying - {name for name in types if self._imagined(name).role == "weighted"})
        return without if without == types else without & set(re.findall(r"\w+", pattern))

    def _name_rules(self) -> list[tuple[frozenset[str], Rule]]:
        names = [op.name for op in self._ops]
        return [
            (
                _matching(key, names, f"op_name_dict[{key!r}]", "op of this model"),
                self._rule(key, value, "name", key not in names),
            )
            for key, value in self._config.op_name_dict.items()
        ]

    def _first_last_rules(self, first_last: str | None) -> list[Rule]:
        return [] if first_last is None else [self._named(first_last, f"first_last={first_last!r}", "position")]

    def _recipe_rules(self, first_last: str | None) -> list[tuple[Position, Rule]]:
        off = self._config.float_ends
        if off and first_last is not None and first_last not in _floats():
            raise ConfigError(f"recipes[{off[0]!r}]=False leaves an op float that first_last={first_last!r} quantizes")
        return [
            (
                "first" if name.startswith("first") else "last",
                self._named("fp32", f"recipes[{name!r}]=False", "position"),
            )
            for name in off
        ]

    def _check_approach(self) -> None:
        mode = self._global.fields.get("quant_mode", ("",))[0] if self._global else ""
        approach = self._config.approach
        if (approach == "weight_only" and mode in ("static", "dynamic")) or (
            approach == "dynamic" and mode == "weight_only"
        ):
            raise ConfigError(f"approach={approach!r} and precision={self._config.precision!r} ({mode}) contradict")

    def _check_positions(self) -> None:
        asked = [rule.source for rule in [*self._first_last, *(rule for _, rule in self._recipes)]]
        asked += [rule.source for one, rule in self._constraints if one.position]
        if asked and self._ops and not any(op.positions | op.product_positions for op in self._ops):
            raise ConfigError(
                f"{asked[0]} speaks of the first and last op, and only a forward shows which those are: "
                "pass calibration data (one batch is enough)"
            )

    def _check_tensors(self) -> None:
        """A pattern that sets a field of a tensor which none of its ops has would do nothing, silently."""
        for matched, rule in [*self._types, *self._names]:
            ops = [op for op in self._ops if (op.type if rule.level == "type" else op.name) in matched]
            if rule.whole or not ops:
                continue
            for tensor in {name.split(".")[0] for name in rule.fields} - {"quant_mode"}:
                if not any(has_tensor(self._capability, op, tensor) for op in ops):
                    raise ConfigError(
                        f"{rule.source}: {tensor} is asked for, and no op that it speaks of quantizes one: "
                        f"{listing(f'{op.name} ({op.type})' for op in ops[:8])}"
                    )

    def _check_spelling(self) -> None:
        """A type that the model has in the other spelling alone (GELU is a module, gelu a function) was meant."""
        present = {op.type for op in self._ops}
        spoken_of = {op_type for keys, _ in self._types for op_type in keys}
        for keys, rule in self._types:
            for op_type in keys if keys.isdisjoint(present) else ():
                twins = [name for name in present - spoken_of if name.lower() == op_type.lower()]
                if twins:
                    raise ConfigError(f"{rule.source}: this model has {twins[0]}, and no {op_type}; name {twins[0]!r}")


def _mode_alone(rule: Rule) -> Rule:
    mode = {name: value for name, value in rule.fields.items() if name == "quant_mode"}
    return replace(rule, fields=mode, section=None, whole=False)


def has_tensor(capability: Capability, op: OpInfo, tensor: str) -> bool:
    """Whether an op has a tensor that could be quantized; of an unlisted op, whether it has it at all."""
    if not op.quantizable or (tensor == "weight" and op.role != "weighted"):
        return False
    if not capability.modes(op.type):
        return tensor != "output"
    return tensor in capability.tensors(op.type)


def _floats() -> list[str]:
    return [name for name, data_type in registered_dtypes().items() if data_type.is_float]


def _matching(key: str, known: Sequence[str], where: str, what: str) -> frozenset[str]:
    """The names that a key means: itself, else every name that it matches whole as a regular expression."""
    if key in known:
        return frozenset({key})
    try:
        pattern = re.compile(key)
    except re.error as error:
        raise ConfigError(f"{where}: {key!r} is neither an {what} nor a regular expression ({error})") from None
    matched = frozenset(name for name in known if pattern.fullmatch(name))
    if not matched:
        raise ConfigError(f"{where}: no {what} matches{nearest(key, known)} (there are: {_shown(known)})")
    return matched


def _shown(names: Sequence[str], most: int = 40) -> str:
    unique = sorted(set(names))
    return listing(unique[:most]) + (f" and {len(unique) - most} more" if len(unique) > most else "")
