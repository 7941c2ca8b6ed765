"""prepare: a copy of a float model, its ops swapped, its quantizers calibrated."""

from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from subbyte.adaptor.pytorch.attach import attach, scope_of
from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.borrowed_weights import borrow_weights
from subbyte.adaptor.pytorch.calibrate import calibrate
from subbyte.adaptor.pytorch.convert import convert_in_place
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.coverage import op_infos
from subbyte.adaptor.pytorch.discovery import discover
from subbyte.adaptor.pytorch.fingerprint import fingerprint
from subbyte.adaptor.pytorch.float_model import check_float
from subbyte.adaptor.pytorch.fusion import fuse
from subbyte.adaptor.pytorch.graph import Graph, Op
from subbyte.adaptor.pytorch.modules import FloatHandler, handler_of
from subbyte.adaptor.pytorch.overflow import check_accumulators
from subbyte.adaptor.pytorch.progress import progress
from subbyte.adaptor.pytorch.quantized_module import QuantizedModule
from subbyte.adaptor.pytorch.recording import FoundLater, Recording, Resolver, functional_types
from subbyte.adaptor.pytorch.state import QuantizationState, hold
from subbyte.adaptor.pytorch.trace import module_op, quantizable_modules, with_held_weights
from subbyte.errors import CalibrationError, ModelError
from subbyte.spec import OpConfig, OpInfo, TuneConfig


def prepare(model: nn.Module, resolve: Resolver, data: Any = None) -> nn.Module:
    """A prepared and calibrated copy of a model.

    Args:
        model: float; not changed.
        resolve: from the ops that were found to what each gets.
        data: calibration data; None serves configurations that need none.

    Raises:
        ModelError: the model is quantized already, or cannot be.
        CalibrationError: the data is missing, empty, unfit or not finite.
        ConfigError: the configuration does not fit the model.
    """
    check_float(model)
    with torch.inference_mode(False):  # its tensors have no version, by which changes of a weight are seen
        return _prepare(copied(model), model, resolve, data)


def quantize(model: nn.Module, resolve: Resolver, data: Any = None) -> nn.Module:
    """`convert(prepare(...))` without ever holding a second copy of the float weights; arguments as for `prepare`."""
    check_float(model)
    with torch.inference_mode(False):
        borrowed = borrow_weights(model)
        converted = convert_in_place(_prepare(borrowed.model, model, resolve, data))
    borrowed.give_back()
    return converted


def _prepare(prepared: nn.Module, model: nn.Module, resolve: Resolver, data: Any) -> nn.Module:
    stream = None if data is None else batches(data)
    first = None if stream is None else next(stream)
    names: dict[tuple[str, str, str], str] = {}
    graph = static_graph(prepared) if first is None else discover(prepared, first, names)
    fuse(graph, prepared, resolve.fusions)
    if all(_stays_float(prepared, op) for op in graph):
        raise ModelError("the model has no op that can be quantized")
    resolve.check(graph, prepared)
    found = op_infos(graph, prepared, parameter_sizes(model))
    config = resolve(found if first is not None else [*found, *functional_types()])
    found_later: dict[str, OpConfig] = {}
    if first is None:
        config, found_later = _split(config, found)
        _check_needs_no_data(config)
    state = QuantizationState(
        config,
        graph,
        float_bytes=model_bytes(model),
        float_parameters=parameter_sizes(model),
        fingerprint=fingerprint(model),
    )
    attach(prepared, state, list(graph.ops))
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    hold(prepared, state.to(device))
    if first is not None and stream is not None:
        recording = Recording(state, resolve, names)
        calibrate(prepared, recording, progress(chain([first], stream), _length(data), "calibrating"))
    else:
        find_later(prepared, state, found_later)
    if resolve.strict:
        check_accumulators(prepared)
    state.train(prepared.training)
    state.run.phase = "quantize"
    return prepared


def static_graph(model: nn.Module) -> Graph:
    """The module ops of a model, without a forward: no positions, no functional ops."""
    names = {module: name for name, module in model.named_modules()}
    found = quantizable_modules(model)
    ops = {names[module]: module_op(module, names[module], found[module]) for module in found}
    return replace(with_held_weights(model), ops=ops)


def model_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))


def parameter_sizes(model: nn.Module) -> dict[str, int]:
    """Return the number of values of each parameter, by name; shared ones once."""
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


def find_later(model: nn.Module, state: QuantizationState, by_type: dict[str, OpConfig]) -> None:
    """Let the first forward of a model without data find the functional ops, and the weights that code reads."""
    if not isinstance(model, QuantizedModule):  # else the model itself is an op: it holds no others
        state.found_later = by_type
        scope_of(model, state, "").before_first = FoundLater(by_type).before_first
        state.run.awaits_first = bool(by_type)


def _stays_float(model: nn.Module, op: Op) -> bool:
    if op.kind == "function":
        return not op.quantizable
    return isinstance(handler_of(model.get_submodule(op.name)), FloatHandler)


def _split(config: TuneConfig, found: list[OpInfo]) -> tuple[TuneConfig, dict[str, OpConfig]]:
    """The configuration of ops that are known, and of the types of those that are not."""
    keys = {op.key for op in found}
    later = {op_type: given for (name, op_type), given in config.op.items() if (name, op_type) not in keys}
    kept = {key: given for key, given in config.op.items() if key in keys}
    sources = {key: given for key, given in config.sources.items() if key in keys}
    return TuneConfig(kept, sources), {op_type: given for op_type, given in later.items() if not given.is_unchanged}


def _check_needs_no_data(config: TuneConfig) -> None:
    for (name, _), op_config in config.op.items():
        activation = op_config.activation
        if op_config.calibrates and activation is not None and not activation.is_float:
            raise CalibrationError(
                f"op {name!r} has static activations ({activation}), which need calibration data; pass data, or "
                "ask for dynamic ('w4a8:dynamic') or weight-only ('w4') quantization"
            )


def _length(data: Any) -> int | None:
    try:
        return 1 if isinstance(data, torch.Tensor) else len(data)
    except TypeError:
        return None
