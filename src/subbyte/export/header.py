"""The JSON header of a checkpoint: everything of a quantized model that is not a tensor."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from subbyte.adaptor.pytorch.graph import Call, Graph, Op
from subbyte.adaptor.pytorch.state import QuantizationState
from subbyte.dtypes import DataType, register_dtype
from subbyte.errors import CheckpointError, ConfigError, DataTypeError, quoted
from subbyte.export.schema import FORMAT, Header, OpConfigFields, OpFields, SpecFields
from subbyte.numerics import registered_schemes
from subbyte.spec import OpConfig, TensorSpec, TuneConfig

_TENSORS = ("weight", "activation", "bias", "output")


def state_header(state: QuantizationState) -> dict[str, Any]:
    """Return configuration, recording, data types and figures of a state, as plain values."""
    later = state.found_later
    return {
        "format": FORMAT,
        "fingerprint": shared(list(state.fingerprint.items())),
        "float_bytes": state.float_bytes,
        "dtypes": _used_dtypes([*state.config.op.values(), *(later or {}).values()]),
        "config": shared([(key, _config_values(config)) for key, config in state.config.op.items()]),
        "sources": shared([(key, dict(sources)) for key, sources in state.config.sources.items()]),
        "ops": [_op_values(op) for op in state.graph],
        "order": state.graph.order,
        "read_by_code": sorted(state.graph.read_by_code),
        "readers": sorted(state.graph.readers),
        "found_later": None if later is None else {name: _config_values(config) for name, config in later.items()},
        "inputs": state.input_keys,
        "weight_sqnr": state.weight_sqnr,
        "activation_sqnr": state.activation_sqnr,
        "moved_by": state.moved_by,
    }


def state_from(header: Header, float_parameters: Mapping[str, int]) -> QuantizationState:
    """Return the state that `state_header` described; its data types are registered.

    Args:
        header: of the checkpoint.
        float_parameters: of the float model, as in QuantizationState.

    Raises:
        CheckpointError: fields contradict each other, a data type stands for another one here, or a scheme is not
            registered.
    """
    try:
        for name, kind in header.dtypes.items():
            register_dtype(DataType.from_dict(name, kind.model_dump()))
    except DataTypeError as error:
        raise CheckpointError(f"the checkpoint brings its own data type, which clashes: {error}") from error
    config = TuneConfig(
        {key: op_config(key[0], values) for key, values in header.config.items()}, dict(header.sources.items())
    )
    later = found_later(header)
    _check_schemes([*config.op.values(), *later.values()])
    used = _used_dtypes([*config.op.values(), *later.values()]).keys()
    if used != header.dtypes.keys():
        raise CheckpointError(
            f"the checkpoint describes the data types {quoted(sorted(header.dtypes))}, and its configuration has "
            f"{quoted(sorted(used))}"
        )
    order = {scope: list(sites) for scope, sites in header.order.items()}
    ops = {values.name: _op_from(values) for values in header.ops}
    if len(ops) != len(header.ops):
        raise CheckpointError("the checkpoint lists an op twice")
    graph = Graph(ops, order, set(header.read_by_code), set(header.readers))
    state = QuantizationState(
        config,
        graph,
        float_bytes=header.float_bytes,
        float_parameters=float_parameters,
        fingerprint=dict(header.fingerprint.items()),
    )
    state.weight_sqnr, state.activation_sqnr = _figures(header.weight_sqnr), _figures(header.activation_sqnr)
    state.moved_by = list(header.moved_by)
    return state


def op_config(name: str, values: OpConfigFields) -> OpConfig:
    """Return the configuration of an op.

    Raises:
        CheckpointError: fields contradict each other.
    """
    try:
        specs = {role: getattr(values, role) for role in _TENSORS}
        built = {role: None if spec is None else tensor_spec(spec) for role, spec in specs.items()}
        return OpConfig(**built, quant_mode=values.quant_mode, accumulator=values.accumulator)
    except (ConfigError, DataTypeError) as error:
        raise CheckpointError(f"the configuration of op {quoted(name)}: {error}") from error


def found_later(header: Header) -> dict[str, OpConfig]:
    """Return the configurations of the functional ops that a first forward is to find, by type."""
    return {name: op_config(name, values) for name, values in (header.found_later or {}).items()}


def tensor_spec(values: SpecFields) -> TensorSpec:
    """Return the spec.

    Raises:
        ConfigError, DataTypeError: fields contradict each other.
    """
    return TensorSpec(**values.model_dump())


def spec_values(spec: TensorSpec) -> dict[str, Any]:
    """Return every field of a spec as a plain value."""
    plain = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return plain | {"dtype": spec.dtype.name, "granularity": str(spec.granularity)}


def shared(entries: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """Return values by key, equal ones written once: most ops of a model are configured alike."""
    values: list[dict[str, Any]] = []
    for _, value in entries:
        if value not in values:
            values.append(value)
    return {"values": values, "keys": [[key, values.index(value)] for key, value in entries]}


def _config_values(config: OpConfig) -> dict[str, Any]:
    specs = {role: getattr(config, role) for role in _TENSORS}
    plain = {role: None if spec is None else spec_values(spec) for role, spec in specs.items()}
    return plain | {"quant_mode": config.quant_mode, "accumulator": config.accumulator}


def _figures(by_op: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(figure) for name, figure in by_op.items()}


def _used_dtypes(configs: Iterable[OpConfig]) -> dict[str, Any]:
    return {spec.dtype.name: spec.dtype.to_dict() for spec in _specs(configs)}


def _specs(configs: Iterable[OpConfig]) -> list[TensorSpec]:
    return [spec for op in configs for spec in (op.weight, op.activation, op.bias, op.output) if spec is not None]


def _check_schemes(configs: Iterable[OpConfig]) -> None:
    for scheme in {spec.scheme for spec in _specs(configs)} - {*registered_schemes()}:
        raise CheckpointError(
            f"the checkpoint uses the scheme {quoted(scheme)}, which is not registered; call "
            f"subbyte.register_scheme({quoted(scheme)}, ...) before it is loaded"
        )


def _op_values(op: Op) -> dict[str, Any]:
    values = asdict(op) | {"positions": sorted(op.positions)}
    del values["product_positions"], values["consumers"]  # a request is resolved by them, and here it is resolved
    return values


def _op_from(values: OpFields) -> Op:
    calls = tuple(Call(call.site, tuple(call.producers), call.quantizable) for call in values.calls)
    sets = {"positions": frozenset(values.positions), "parameters": tuple(values.parameters)}
    return Op(**{**dict(values), **sets, "calls": calls})
