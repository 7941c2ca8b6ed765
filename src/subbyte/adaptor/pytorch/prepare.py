"""prepare: a copy of a float model, its ops swapped, its quantizers calibrated."""

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from subbyte.adaptor.pytorch.attach import attach, merged_config
from subbyte.adaptor.pytorch.batch import Batch, batches
from subbyte.adaptor.pytorch.discovery import discover, module_op, quantizable_modules, unchanged
from subbyte.adaptor.pytorch.fingerprint import fingerprint
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.progress import progress
from subbyte.adaptor.pytorch.state import STATE, QuantizationState, is_quantized
from subbyte.errors import CalibrationError, ModelError, UnseenOpError
from subbyte.spec import OpInfo, TuneConfig

Resolver = Callable[[Sequence[OpInfo]], TuneConfig]


def prepare(model: nn.Module, resolve: Resolver, data: Any = None, limit: int | None = None) -> nn.Module:
    """A prepared and calibrated copy of a model.

    Args:
        model: float; not changed.
        resolve: from the ops that were found to what each gets.
        data: calibration data; None serves configurations that need none.
        limit: samples to use at the most.

    Raises:
        ModelError: the model is quantized already, or cannot be.
        CalibrationError: the data is missing, empty, unfit or not finite.
        ConfigError: the configuration does not fit the model.
    """
    check_float(model)
    prepared = copy.deepcopy(model)
    stream = None if data is None else batches(data, limit)
    first = None if stream is None else next(stream)
    names: dict[tuple[str, str, str], str] = {}
    graph = static_graph(prepared) if first is None else discover(prepared, first, names)
    if not graph.ops:
        raise ModelError("the model has no op that can be quantized")
    config = resolve([op.info for op in graph if op.quantizable])
    state = QuantizationState(config, graph, model_bytes(model), fingerprint(model))
    if first is None:
        _check_needs_no_data(config)
    attach(prepared, state, list(graph.ops))
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    setattr(prepared, STATE, state.to(device))
    if first is not None and stream is not None:
        _calibrate(prepared, state, chain([first], stream), resolve, names, _length(data))
    state.train(prepared.training)
    state.run.phase = "quantize"
    return prepared


def check_float(model: Any) -> None:
    """Refuse what cannot be prepared.

    Raises:
        ModelError: it is no module, quantized already, or hides its forward or weights.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if is_quantized(model):
        raise ModelError("the model is quantized already; start from the float model")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a TorchScript model cannot be quantized; give the Python model it was made from")
    for name, module in model.named_modules():
        if "forward" in vars(module):
            raise ModelError(f"module {name!r} has its forward replaced on the object; restore it first")
        if parametrize.is_parametrized(module):
            raise ModelError(
                f"module {name!r} has parametrized weights; call torch.nn.utils.parametrize."
                "remove_parametrizations on it first"
            )


def static_graph(model: nn.Module) -> Graph:
    """The module ops of a model, without a forward: no positions, no functional ops."""
    names = {module: name for name, module in model.named_modules()}
    found = quantizable_modules(model)
    return Graph({names[module]: module_op(module, names[module], found[module]) for module in found})


def model_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))


def _check_needs_no_data(config: TuneConfig) -> None:
    for (name, _), op_config in config.op.items():
        activation = op_config.activation
        if op_config.quant_mode == "static" and activation is not None and not activation.is_float:
            raise CalibrationError(
                f"op {name!r} has static activations ({activation}), which need calibration data; pass data, or "
                "ask for dynamic ('w4a8:dynamic') or weight-only ('w4') quantization"
            )


def _calibrate(
    prepared: nn.Module,
    state: QuantizationState,
    stream: Iterator[Batch],
    resolve: Resolver,
    names: dict[tuple[str, str, str], str],
    total: int | None,
) -> None:
    last = None
    with unchanged(prepared):
        for last in progress(stream, total, "calibrating"):
            state.run.phase = "observe"
            while True:
                try:
                    last.run(prepared)
                    break
                except UnseenOpError:
                    # This batch takes a path that none before did: record it, then run the batch again.
                    if not _learn(prepared, state, last, resolve, names):
                        raise
    for quantizer in state.static_quantizers():
        quantizer.calibrate()
    assert last is not None
    with unchanged(prepared):
        state.run.phase = "measure"
        last.run(prepared)
    for op, keys in state.input_keys.items():
        values = [value for key in keys if (value := getattr(state.quantizers[key], "sqnr", None)) is not None]
        if values:
            state.activation_sqnr[op] = min(values)


def _learn(
    prepared: nn.Module,
    state: QuantizationState,
    batch: Batch,
    resolve: Resolver,
    names: dict[tuple[str, str, str], str],
) -> bool:
    """Record the path of a batch and prepare what is new on it; False when nothing is."""
    state.run.phase = "bypass"
    new = state.graph.merge(discover(prepared, batch, names))
    merged_config(state, resolve([op.info for op in state.graph if op.quantizable]), new)
    attach(prepared, state, new)
    state.run.phase = "observe"
    return bool(new)


def _length(data: Any) -> int | None:
    try:
        return 1 if isinstance(data, torch.Tensor) else len(data)
    except TypeError:
        return None
