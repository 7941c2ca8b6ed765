"""Checking a TuneConfig that was given, as a strategy or a user does, against model and capability."""

from collections.abc import Sequence
from dataclasses import replace

from subbyte.capability import FIELDS, TENSORS, Capability, OpCapability
from subbyte.config.asked import Asked, wishes
from subbyte.config.fields import check_registered
from subbyte.config.post_training import PostTrainingQuantConfig
from subbyte.config.rules import Rule, RuleBook
from subbyte.config.select import Sources, Table, choose_section
from subbyte.errors import ConfigError, listing, nearest
from subbyte.spec import OpConfig, OpInfo, OpKey, TensorSpec, TuneConfig

_SOURCE = "TuneConfig"


def check_given(capability: Capability, ops: Sequence[OpInfo], given: TuneConfig) -> TuneConfig:
    """The same configuration for every op of the model; ops that it does not name stay float.

    Raises:
        ConfigError: it names an op that the model has not, or the capability does not allow what an op gets.
    """
    known = {op.key: op for op in ops}
    for key in given.op:
        if key not in known:
            raise _no_such_op(key, ops)
    rules = RuleBook(capability, ops, PostTrainingQuantConfig(), None)
    configs: dict[OpKey, OpConfig] = {}
    sources: dict[OpKey, Sources] = {}
    for key, op in known.items():
        config = given.op.get(key)
        configs[key] = OpConfig() if config is None else _checked(capability, op, config, rules.for_op(op))
        sources[key] = dict(given.sources.get(key, _sources(configs[key], config is not None)))
    return TuneConfig(configs, sources)


def _no_such_op(key: OpKey, ops: Sequence[OpInfo]) -> ConfigError:
    name, op_type = key
    types = [op.type for op in ops if op.name == name]
    if types:
        return ConfigError(f"TuneConfig: op {name!r} is a {types[0]}, not a {op_type}")
    names = [op.name for op in ops]
    return ConfigError(f"TuneConfig: the model has no op {name!r} ({op_type}){nearest(name, names)}")


def _sources(config: OpConfig, named: bool) -> Sources:
    source = _SOURCE if named else f"not named in the {_SOURCE}: float"
    specs = {tensor: getattr(config, tensor) for tensor in TENSORS}
    fields = {f"{tensor}.{name}": source for tensor, spec in specs.items() if spec for name in spec.to_dict()}
    return {"quant_mode": source} | fields


def _checked(capability: Capability, op: OpInfo, config: OpConfig, rules: Sequence[Rule]) -> OpConfig:
    """The configuration, with the mode said outright where its activation is float."""
    where = f"op {op.name!r} ({op.type})"
    if config.bias is not None and not config.bias.is_float:
        raise ConfigError(f"{where}: TuneConfig: a quantized bias ({config.bias}) is not supported; leave it out")
    weight, activation = _quantized(config.weight), _quantized(config.activation)
    if weight is not None and op.role != "weighted":
        raise ConfigError(f"{where}: TuneConfig gives a weight, and the op has none")
    if op.role == "weighted" and weight is None and activation is not None:
        raise ConfigError(f"{where}: TuneConfig quantizes the activation alone; give a weight too, or leave both out")
    for spec in (config.weight, config.activation):
        if spec is not None:
            check_registered(spec.dtype, f"{where}: TuneConfig")
        if spec is not None and spec.is_float and not capability.allows_float(op.type, spec.dtype.name):
            raise ConfigError(
                f"{where}: TuneConfig: {spec.dtype} is not listed by {capability.name} for {op.type} "
                f"(float types: {listing(capability.floats)})"
            )
    if weight is not None and activation is None and "activation" in capability.tensors(op.type):
        config = replace(config, quant_mode="weight_only")
    _check_constraints(capability, op, config, rules)
    return config if config.is_float else replace(config, accumulator=_section(capability, op, config).accumulator)


def _quantized(spec: TensorSpec | None) -> TensorSpec | None:
    return None if spec is None or spec.is_float else spec


def _asked(config: OpConfig) -> dict[str, Asked]:
    """Every field of the quantized tensors, as a request for just that value."""
    fields = {}
    for tensor in TENSORS:
        spec = _quantized(getattr(config, tensor))
        for name in FIELDS if spec is not None else ():
            fields[f"{tensor}.{name}"] = Asked((str(getattr(spec, name)),), _SOURCE, True)
    return fields


def _section(capability: Capability, op: OpInfo, config: OpConfig) -> OpCapability:
    """The entry of the capability that allows a configuration."""
    table = Table(capability, op, config.quant_mode)
    if not table.entries:
        raise ConfigError(
            f"{table}: TuneConfig quantizes it, but {capability.name} lists no {op.type} in "
            f"{config.quant_mode} mode (it has: {listing(capability.modes(op.type))})"
        )
    # Every field is asked for, so all sections that allow it give the same.
    section, _ = choose_section(table, _asked(config))
    return table.entries[section]


def _check_constraints(capability: Capability, op: OpInfo, config: OpConfig, rules: Sequence[Rule]) -> None:
    asked = _asked(config)
    for rule in rules:
        required = wishes([rule], op, config.quant_mode, capability)
        for name, wish in required.items():
            given = asked[name].values[0] if name in asked else str(config.half or "fp32")
            if name.endswith(".dtype") and given not in wish.values:
                raise ConfigError(
                    f"{op.name!r} ({op.type}): TuneConfig gives {name} {given}, but {wish.source} asks for "
                    f"{' or '.join(map(str, wish.values))}"
                )
