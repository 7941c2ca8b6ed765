"""The JSON header of a checkpoint: everything of a quantized model that is not a tensor."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from subbyte.adaptor.pytorch.graph import Call, Graph, Op
from subbyte.adaptor.pytorch.state import QuantizationState
from subbyte.dtypes import DataType, register_dtype
from subbyte.errors import CheckpointError, DataTypeError, quoted
from subbyte.numerics import registered_schemes
from subbyte.spec import OpConfig, TensorSpec, TuneConfig

FORMAT = 3


def state_header(state: QuantizationState) -> dict[str, Any]:
    """Configuration, recording, data types and figures of a state, as plain values."""
    later = state.found_later
    return {
        "format": FORMAT,
        "fingerprint": _shared([((part,), settings) for part, settings in state.fingerprint.items()]),
        "float_bytes": state.float_bytes,
        "float_params": state.float_params,
        "dtypes": _used_dtypes([*state.config.op.values(), *(later or {}).values()]),
        "config": _shared([(key, config.to_dict()) for key, config in state.config.op.items()]),
        "sources": _shared([(key, dict(sources)) for key, sources in state.config.sources.items()]),
        "ops": [_op_values(op) for op in state.graph],
        "order": state.graph.order,
        "read_by_code": sorted(state.graph.read_by_code),
        "readers": sorted(state.graph.readers),
        "found_later": None if later is None else {name: config.to_dict() for name, config in later.items()},
        "weight_sqnr": state.weight_sqnr,
        "activation_sqnr": state.activation_sqnr,
        "moved_by": state.moved_by,
    }


def state_from(header: Mapping[str, Any]) -> QuantizationState:
    """The state that `state_header` described; its data types are registered.

    Raises:
        CheckpointError: the header is of another format, names a data type that stands for another one here, or a
            scheme that is not registered.
    """
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {quoted(header.get('format'))}; this version of Subbyte reads format {FORMAT}"
        )
    try:
        for name, fields in header["dtypes"].items():
            register_dtype(DataType.from_dict(name, fields))
    except DataTypeError as error:
        raise CheckpointError(f"the checkpoint brings its own data type, which clashes: {error}") from error
    config = TuneConfig(
        {(name, kind): OpConfig.from_dict(values) for (name, kind), values in _each(header["config"])},
        {(name, kind): sources for (name, kind), sources in _each(header["sources"])},
    )
    later = [OpConfig.from_dict(values) for values in (header["found_later"] or {}).values()]
    _check_schemes([*config.op.values(), *later])
    order = {scope: [(kind, site) for kind, site in sites] for scope, sites in header["order"].items()}
    ops = {values["name"]: _op_from(values) for values in header["ops"]}
    graph = Graph(ops, order, set(header["read_by_code"]), set(header["readers"]))
    fingerprint = {part: settings for (part,), settings in _each(header["fingerprint"])}
    sizes = {key: header[key] for key in ("float_bytes", "float_params")}
    state = QuantizationState(config, graph, fingerprint=fingerprint, **sizes)
    state.weight_sqnr, state.activation_sqnr = _figures(header["weight_sqnr"]), _figures(header["activation_sqnr"])
    state.moved_by = list(header.get("moved_by", ()))  # files of earlier versions have none
    return state


def _figures(by_op: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(figure) for name, figure in by_op.items()}


def _shared(entries: list[tuple[tuple[str, ...], dict[str, Any]]]) -> dict[str, Any]:
    """Values by key, equal ones written once: most ops of a model are configured alike."""
    values: list[dict[str, Any]] = []
    for _, value in entries:
        if value not in values:
            values.append(value)
    return {"values": values, "keys": [[*key, values.index(value)] for key, value in entries]}


def _each(shared: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """What `_shared` was given."""
    for *key, index in shared["keys"]:
        yield tuple(key), shared["values"][index]


def _used_dtypes(configs: Iterable[OpConfig]) -> dict[str, Any]:
    return {spec.dtype.name: spec.dtype.to_dict() for spec in _specs(configs)}


def _specs(configs: Iterable[OpConfig]) -> list[TensorSpec]:
    return [spec for op in configs for spec in (op.weight, op.activation, op.output) if spec is not None]


def _check_schemes(configs: Iterable[OpConfig]) -> None:
    for scheme in {spec.scheme for spec in _specs(configs)} - {*registered_schemes()}:
        raise CheckpointError(
            f"the checkpoint uses the scheme {quoted(scheme)}, which is not registered; call "
            f"subbyte.register_scheme({quoted(scheme)}, ...) before it is loaded"
        )


def _op_values(op: Op) -> dict[str, Any]:
    values = asdict(op) | {"positions": sorted(op.positions)}
    del values["product_positions"]  # a request's recipes ask for it, and here the request is resolved
    return values


def _op_from(values: Mapping[str, Any]) -> Op:
    calls = tuple(Call(call["site"], tuple(call["producers"]), call["quantizable"]) for call in values["calls"])
    sets = {"positions": frozenset(values["positions"]), "parameters": tuple(values["parameters"])}
    return Op(**{**values, **sets, "calls": calls})
