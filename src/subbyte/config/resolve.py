"""From what a user asks and what a capability can do to what every op gets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from subbyte.capability import DEFAULT, Capability, broken_promises, implemented_forms
from subbyte.config.asked import Asked, Wishes, asked_mode, float_type, wishes
from subbyte.config.given import check_given
from subbyte.config.placement import combines, consumed_in_float
from subbyte.config.post_training import PostTrainingQuantConfig
from subbyte.config.request import as_request
from subbyte.config.rules import Rule, RuleBook
from subbyte.config.select import Sources, Table, build_config, choose_section, default_section
from subbyte.config.supported import check_supported
from subbyte.dtypes import dtype, registered_dtypes
from subbyte.errors import ConfigError, listing, nearest
from subbyte.spec import OpConfig, OpInfo, OpKey, QuantMode, TensorSpec, TuneConfig

Resolved = tuple[OpConfig, Sources]


def resolve(capability: Capability, ops: Sequence[OpInfo], config: Any, first_last: str | None = None) -> TuneConfig:
    """Decide what every op of a model gets.

    Weakest first, merged field by field: global precision, op types, first/last and recipes, op names. The
    capability's constraints narrow the global precision and its own default; anything else must agree with them.

    Args:
        capability: what the ops can do.
        ops: all ops of the model, with their positions where a forward was recorded; also those that are not
            quantizable.
        config: a request in any form that `as_request` reads.
        first_last: the precision of the first and last ops; beats the request's own.

    Returns:
        A configuration for every quantizable op, with the rule that set each field in `sources`.

    Warns:
        UnsupportedOpWarning: an op stays in float although the capability lists no fp32 for it, which it permits.

    Raises:
        ConfigError: the request is misspelt, matches nothing, contradicts itself or a constraint, or is
            not allowed by the capability; or the capability lists neither a precision nor fp32 for an op.
    """
    if first_last is not None and not isinstance(first_last, str):
        raise ConfigError(f"first_last is the name of a precision, as in 'int8', not {first_last!r}")
    request = as_request(config)
    if isinstance(request, TuneConfig):
        if first_last is not None:
            raise ConfigError("a TuneConfig says what every op gets, so first_last has nothing to say; leave it out")
        tune = check_given(capability, [op for op in ops if op.quantizable], request)
    else:
        tune = _resolved(capability, ops, request, first_last)
    check_supported(capability, ops, tune)
    return tune


def _resolved(
    capability: Capability, every_op: Sequence[OpInfo], request: PostTrainingQuantConfig, first_last: str | None
) -> TuneConfig:
    ops = [op for op in every_op if op.quantizable]
    excluded = excluded_names(capability, request)
    rules = RuleBook(capability, every_op, request, first_last)
    unimplemented = [op for op in every_op if op.positions and not (op.quantizable and implemented_forms(op.type))]
    _check_float_ends(unimplemented, rules)
    _check_types(capability, every_op, request, rules)
    configs: dict[OpKey, OpConfig] = {}
    sources: dict[OpKey, Sources] = {}
    for op in ops:
        resolved = _Op(capability, op, request, excluded).resolve(rules.for_op(op))
        configs[op.key], sources[op.key] = resolved
    free = {
        op.key
        for op in ops
        if configs[op.key].quantizes_inputs
        and _Op(capability, op, request, excluded).may_become_float(rules.for_op(op))
    }
    for key, reason in consumed_in_float(ops, configs, free).items():
        configs[key], sources[key] = OpConfig(), {"activation.dtype": reason}
    if all(config.is_unchanged for config in configs.values()):
        for op in ops:
            _Op(capability, op, request, excluded).check_mode(rules.for_op(op))
    for op in rules.absent():  # one request may serve several models, but not be wrong for each
        _Op(capability, op, request, excluded).resolve(rules.for_op(op))
    rules.check_names()  # last: of what an op cannot have, its own error says what it can
    return TuneConfig(configs, sources)


def _check_float_ends(ops: Sequence[OpInfo], rules: RuleBook) -> None:
    """Raise ConfigError if a rule for the first and last ops requests a precision for ops that cannot be quantized."""
    requested = [(op, rule) for op in ops if (rule := _request_of_position(rules.for_op(op))) is not None]
    if requested:
        names = [op.name for op, _ in requested]
        kinds = listing(op.type for op, _ in requested)
        raise ConfigError(
            f"op {', '.join(map(repr, names))} ({kinds}): {requested[0][1].source} requests a precision for it, but "
            f"Subbyte has no quantized form of it (functions that are called with a weight, and modules with a forward "
            f"of their own, stay in float); leave it in float: op_name_dict={{{names[0]!r}: 'fp32'}}"
        )


def _check_types(
    capability: Capability, ops: Sequence[OpInfo], request: PostTrainingQuantConfig, rules: RuleBook
) -> None:
    """Raise ConfigError if an op type that nothing implements gets a precision by its name or as the default."""
    requested = {op_type: rule.source for op_type, rule in rules.unimplemented().items()}
    for name in {request.precision, capability.default} - {"fp32"}:
        listed = set(capability.floats.get(name or "", ())) - request.op_type_dict.keys()
        found = [op.type for op in ops if op.type in listed and not implemented_forms(op.type)]
        requested |= dict.fromkeys(found, f"precision {name!r}")
    if not requested:
        return
    op_type, source = next(iter(requested.items()))
    names = [op.name for op in ops if op.type == op_type]
    places = [f" ({promise})" for promise in broken_promises(capability) if promise.op_type == op_type]
    raise ConfigError(
        f"{source} requests a precision for {op_type}{f' (op {names[0]!r})' if names else ''}, but Subbyte has no "
        f"quantized form of it, nor one in 16 bits{''.join(places)}; leave it in float: "
        f"op_type_dict={{{op_type!r}: 'fp32'}}"
    )


def _request_of_position(rules: Sequence[Rule]) -> Rule | None:
    """The rule for the first and last ops, if it is the strongest that states a precision, and not fp32."""
    stated = [
        rule
        for rule in rules
        if rule.by_position or (rule.level in ("constraint", "name") and (rule.whole or "weight.dtype" in rule.fields))
    ]
    in_fp32 = stated and "fp32" in stated[-1].fields.get("weight.dtype", ())
    return stated[-1] if stated and stated[-1].by_position and not in_fp32 else None


def modes_of(request: PostTrainingQuantConfig, asked: Asked | None) -> tuple[QuantMode, ...]:
    """The modes that an op may take: those that a rule names, else those of the approach."""
    if asked is not None:
        return asked.values
    return ("static", "dynamic", "weight_only") if request.approach == "auto" else (request.approach,)


def excluded_names(capability: Capability, request: PostTrainingQuantConfig) -> frozenset[str]:
    """The sections and data types that a request excludes.

    Raises:
        ConfigError: it excludes what there is not, or fp32.
    """
    floats = [name for name, data_type in registered_dtypes().items() if data_type.bits == 32]
    known = {*capability.sections, *registered_dtypes()} - set(floats)
    for name in request.excluded_precisions:
        if name in floats:
            raise ConfigError(f"excluded_precisions: {name!r} is what is left where nothing else is; it cannot go")
        if name not in known:
            raise ConfigError(
                f"excluded_precisions: {name!r} is neither a section nor a data type{nearest(name, known)} "
                f"(there are: {listing(known)})"
            )
    return frozenset(request.excluded_precisions)


def float_config(op: OpInfo, name: str) -> OpConfig:
    """What an op gets that is left in a float type."""
    if name == "fp32":
        return OpConfig()
    spec = TensorSpec(dtype(name))
    return OpConfig(weight=spec if op.role == "weighted" else None, activation=spec)


class _Op:
    """Resolves one op."""

    def __init__(
        self, capability: Capability, op: OpInfo, request: PostTrainingQuantConfig, excluded: frozenset[str]
    ) -> None:
        self._capability = capability
        self._op = op
        self._request = request
        self._excluded = excluded

    def resolve(self, rules: Sequence[Rule]) -> Resolved:
        """In the mode that is asked; with approach `auto` in the first that the capability has for the op."""
        asked = asked_mode(rules, self._op)
        modes = self._modes(rules, asked)
        problem: ConfigError | None = None
        for mode in modes:
            merged = wishes(rules, self._op, mode, self._capability)
            as_float = self._as_float(merged, mode, asked)
            if as_float is not None:
                return as_float
            if self._capability.entries(self._op.type, mode):
                try:
                    return self._in_mode(mode, merged, asked)
                except ConfigError as error:
                    problem = problem or error
        if problem is not None:
            raise problem
        return self._unlisted(wishes(rules, self._op, modes[0], self._capability), modes, asked)

    def _modes(self, rules: Sequence[Rule], asked: Asked | None) -> tuple[QuantMode, ...]:
        """The requested modes; for a first or last op that is listed in none of them, the modes that are listed."""
        modes = modes_of(self._request, asked)
        ends = [rule for rule in rules if rule.by_position]
        named = any(rule.level == "name" and "quant_mode" in rule.fields for rule in rules)
        if not ends or named or any(self._capability.entries(self._op.type, mode) for mode in modes):
            return modes
        return tuple(mode for mode in self._capability.modes(self._op.type) if mode != "quant_aware") or modes

    def may_become_float(self, rules: Sequence[Rule]) -> bool:
        """Return whether the op combines values, no rule says how it is quantized, and it can stay in fp32."""
        asked = asked_mode(rules, self._op)
        if not combines(self._op) or (asked is not None and asked.insists):
            return False
        modes = modes_of(self._request, asked)
        stated = any(wishes(rules, self._op, mode, self._capability) for mode in modes)
        return not stated and self._capability.allows_float(self._op.type, "fp32")

    def check_mode(self, rules: Sequence[Rule]) -> None:
        """Of a model that comes out all float: refuse a mode that a weighted op does not have, though it has others.

        Raises:
            ConfigError: that is why the op is float.
        """
        asked = asked_mode(rules, self._op)
        modes, listed = modes_of(self._request, asked), self._capability.modes(self._op.type)
        has_mode = any(self._capability.entries(self._op.type, mode) for mode in modes)
        if self._op.role == "weighted" and listed and not has_mode:
            raise ConfigError(
                f"{self}: {self._mode_source(asked)} asks for {' or '.join(modes)} mode, which "
                f"{self._capability.name} does not list for {self._op.type} (it has {listing(listed)}), and nothing "
                f"else would be quantized; ask for approach={listed[0]!r}, as in config={{'approach': {listed[0]!r}}}"
            )

    def _mode_source(self, asked: Asked | None, mode: QuantMode | None = None) -> str:
        source = f"approach={self._request.approach!r}" if asked is None else asked.source
        if mode is None or mode in modes_of(self._request, asked):
            return source
        return f"{source}; {self._capability.name} lists {self._op.type} in {mode} mode instead"

    def _as_float(self, merged: Wishes, mode: QuantMode, asked: Asked | None) -> Resolved | None:
        """What the op gets where a float type is asked for, of all of it or of its activation."""
        weighted = self._op.role == "weighted"
        whole = merged.get("weight.dtype" if weighted else "activation.dtype")
        name = float_type(whole)
        activation = merged.get("activation.dtype")
        if whole is not None and name is not None:
            if activation is not None and activation.source == whole.source and float_type(activation) is None:
                raise ConfigError(
                    f"{self}: {whole.source} leaves the weight {name} and quantizes the activation alone "
                    f"({'/'.join(map(str, activation.values))}); give the weight a type too, or leave activation out"
                )
            return self._float(name, whole.source)
        name = float_type(activation)
        if not weighted or activation is None or name is None or (mode == "weight_only" and name == "fp32"):
            return None
        self._check_float(name, activation.source)
        rest = {key: wish for key, wish in merged.items() if not key.startswith("activation.")}
        if not self._capability.entries(self._op.type, "weight_only"):
            raise ConfigError(
                f"{self}: {activation.source} leaves the activation {name}, and "
                f"{self._capability.name} has no weight_only {self._op.type} "
                f"(modes: {listing(self._capability.modes(self._op.type))})"
            )
        config, sources = self._in_mode("weight_only", rest, asked)
        fields = sources | {"activation.dtype": activation.source, "quant_mode": activation.source}
        if name != "fp32":
            config = replace(config, activation=TensorSpec(dtype(name)))
        return config, fields

    def _in_mode(self, mode: QuantMode, merged: Wishes, asked: Asked | None) -> Resolved:
        table = Table(self._capability, self._op, mode, self._excluded)
        merged = {
            key: wish
            for key, wish in merged.items()
            if not (key == "activation.dtype" and mode == "weight_only" and float_type(wish))
        }
        if not merged:
            section, reason = default_section(table)
            if section is None and (self._request.precision == DEFAULT or not self._may_be(self._default_float())):
                section = self._capability.first_listed(self._op.type, mode)
            if section is None or section in self._excluded:
                return self._float(self._default_float(), reason, requested=False)
        else:
            try:
                section, merged = choose_section(table, merged)
            except ConfigError:
                lead = merged.get("weight.dtype" if self._op.role == "weighted" else "activation.dtype")
                name = float_type(lead, among=True)
                if lead is None or name is None:
                    raise
                return self._float(name, lead.source)
        config, sources = build_config(table, section, merged)
        return config, {"quant_mode": self._mode_source(asked, mode)} | sources

    def _unlisted(self, merged: Wishes, modes: Sequence[QuantMode], asked: Asked | None) -> Resolved:
        """An op type that the capability does not have in this mode: float, unless something insists."""
        insisting = [wish for wish in [*merged.values(), *([asked] if asked else [])] if wish.insists]
        # The name of a weight-only precision says nothing of an op without weight.
        says_nothing = not merged and self._op.role != "weighted" and modes[0] == "weight_only"
        if insisting and not says_nothing:
            types = self._capability.op_types()
            listed = self._capability.modes(self._op.type)
            hint = f"it has {listing(listed)}" if listed else f"op types: {listing(types)}"
            raise ConfigError(
                f"{self}: {insisting[-1].source} asks to quantize it, but {self._capability.name} lists no "
                f"{self._op.type} in {' or '.join(modes)} mode"
                f"{'' if self._op.type in types else nearest(self._op.type, types)} ({hint}); request one of these, "
                f"or leave it in float: op_name_dict={{{self._op.name!r}: 'fp32'}}"
            )
        reason = f"capability {self._capability.name} lists no {self._op.type} in {' or '.join(modes)} mode"
        return self._float(self._default_float(), reason, requested=False)

    def _default_float(self) -> str:
        default = self._capability.default
        return default if default in self._capability.floats else "fp32"

    def _may_be(self, name: str) -> bool:
        return self._capability.allows_float(self._op.type, name)

    def _float(self, name: str, source: str, *, requested: bool = True) -> Resolved:
        """The op in a float type; `check_supported` judges fp32 that no rule requests."""
        if requested or name != "fp32":
            self._check_float(name, source)
        if not self._may_be(name):
            source += f"; {name} is not listed either (unsupported: float)"
        tensors = ("weight", "activation") if self._op.role == "weighted" else ("activation",)
        sources = {f"{tensor}.dtype": source for tensor in tensors}
        return float_config(self._op, name), sources

    def _check_float(self, name: str, source: str) -> None:
        permitted = self._capability.unsupported == "float" and not self._capability.modes(self._op.type)
        if not self._may_be(name) and not (permitted and name == "fp32"):
            listed = self._capability.floats
            floats = [known for known in listed if self._capability.allows_float(self._op.type, known)]
            raise ConfigError(
                f"{self}: {source} leaves it in {name}, which {self._capability.name} does not list for "
                f"{self._op.type}{nearest(name, floats)} (float types: {listing(floats)}); a file that extends it may: "
                f"capabilities: {{{name}: ['{self._op.type}']}}"
            )

    def __str__(self) -> str:
        return f"op {self._op.name!r} ({self._op.type})"
