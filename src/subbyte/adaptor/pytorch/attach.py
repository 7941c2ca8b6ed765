"""Turning the ops of a copied model into prepared ones, one op at a time."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any

from torch import nn

from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.functional_mode import FloatModule, FunctionalScope, ScopedModule
from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_TYPES
from subbyte.adaptor.pytorch.graph import Op
from subbyte.adaptor.pytorch.half_module import HalfModule, attach_half
from subbyte.adaptor.pytorch.inputs import InputQuantizers
from subbyte.adaptor.pytorch.modules import RecurrentHandler, WeightedHandler, handler_of
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.on_threads import on_threads
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted, QuantizedModule, WeightedModule
from subbyte.adaptor.pytorch.reads import EVERYWHERE, Read, quantized_activation, reads, reads_of_call
from subbyte.adaptor.pytorch.recurrent import QuantizedRecurrent, add_projections, projections, remove_projections
from subbyte.adaptor.pytorch.state import QuantizationState
from subbyte.adaptor.pytorch.swap import swap, swap_self_saving, unswap
from subbyte.adaptor.pytorch.weight import WeightQuantizer, weight_to_quantize
from subbyte.dtypes import DataType
from subbyte.errors import ConfigError, ModelError
from subbyte.numerics import QuantizedTensor, sqnr
from subbyte.spec import OpConfig, TensorSpec

# What `attach` sets on a module.
_ATTACHED = (
    *("handler", "op_name", "op_config", "input_quantizers", "weight_spec", "weight_quantizer", "norm"),
    *("float_weight", "float_weights", "half_type", "float_type", "is_stored", "run"),
)


def attach(model: nn.Module, state: QuantizationState, names: Iterable[str], *, calibrate_weights: bool = True) -> None:
    """Prepare the named ops as state.config says; those that stay float are left alone.

    Args:
        model: float, or prepared in part.
        state: configuration and recording.
        names: of ops in state.graph.
        calibrate_weights: off where packed weights are about to take their place.

    Raises:
        ConfigError: an op cannot have what it is configured to.
        ModelError: a module cannot be quantized.
    """
    ops = [state.graph.ops[name] for name in names]
    prepared: list[PreparedWeighted] = []
    for op in ops:
        config = state.requested(op.info.key)
        if config is not None:
            _check_floats(op, config)
        if op.kind == "module" and config is not None and config.half is not None:
            attach_half(model.get_submodule(op.name), op.name, config.half, state.run)
        elif op.kind == "module" and config is not None and not config.is_float:
            parts = weighted_parts(_attach_module(model, state, op, config))
            prepared += [part for part in parts if isinstance(part, PreparedWeighted)]
    if calibrate_weights:
        on_threads(partial(_calibrate_weight, state), prepared, attrgetter("weight"))
    if _has_functional(state) or _looks_up_functions(model):
        _attach_functions(model, state)
    _attach_weights_read_by_code(model, state)
    swap_self_saving(model)


def detach(model: nn.Module, state: QuantizationState, name: str) -> None:
    """Make an op float again, for `attach` to prepare it otherwise."""
    op = state.graph.ops[name]
    state.drop_inputs(name)
    if op.kind == "function":
        slots = scope_of(model, state, op.scope).slots
        halves = scope_of(model, state, op.scope).halves
        for call in op.calls:
            slots.pop((op.type, call.site), None)
            halves.pop((op.type, call.site), None)
        return
    module = model.get_submodule(name)
    if isinstance(module, PreparedWeighted) and module.norm:
        _release_norm(module)
    unswap(module)
    remove_projections(module)
    for attribute in _ATTACHED:
        if hasattr(module, attribute):
            delattr(module, attribute)


def _has_functional(state: QuantizationState) -> bool:
    # Of a model with static activations a way not yet seen may hold some: it must not run float unnoticed.
    if any(_is_quantized(config) and config.calibrates for config in state.config.op.values()):
        return True
    functions = (op for op in state.graph if op.kind == "function" and op.quantizable)
    configs = [state.requested(op.info.key) for op in functions]
    return any(_is_quantized(config) or (config is not None and config.half is not None) for config in configs)


def _looks_up_functions(model: nn.Module) -> bool:
    """Whether functions were attached before: where one is detached, the others must still be found."""
    return isinstance(model, ScopedModule) and model.functional_scope.active


def _is_quantized(config: OpConfig | None) -> bool:
    return config is not None and not config.is_float and config.quant_mode != "weight_only"


def _check_floats(op: Op, config: OpConfig) -> None:
    """Of an op that names a float type of 16 bits all tensors have that type."""
    specs = [spec for spec in (config.weight, config.activation, config.bias, config.output) if spec is not None]
    halves = [spec.dtype for spec in specs if spec.dtype.is_half]
    others = [spec.dtype for spec in specs if spec.dtype not in halves[:1]]
    if halves and others:
        raise ConfigError(
            f"op {op.name!r}: an op in {halves[0]} has all its tensors in {halves[0]}, and this one has "
            f"{others[0]} too; give weight and activation one float type"
        )


def _attach_module(model: nn.Module, state: QuantizationState, op: Op, config: OpConfig) -> Any:
    module: Any = model.get_submodule(op.name)
    if isinstance(module, QuantizedRecurrent):
        return module
    if isinstance(module, QuantizedModule):
        _add_calls(state, module.input_quantizers, op, config)
        if isinstance(module, PreparedWeighted) and not module.norm:
            _fold_norm(model, state, module, op)
        return module
    handler = handler_of(module)
    assert handler is not None
    handler.check(module, op.name)
    module.handler, module.op_name, module.op_config = handler, op.name, config
    module.input_quantizers = InputQuantizers(op.name, state.run)
    if isinstance(handler, RecurrentHandler):
        _attach_projections(state, module, op, config)
        return module
    _add_calls(state, module.input_quantizers, op, config)
    if not isinstance(handler, WeightedHandler):
        swap(module, QuantizedModule)
        return module
    _attach_weight(module, handler, op, config)
    _fold_norm(model, state, module, op)
    return module


def _attach_weight(module: Any, handler: WeightedHandler, op: Op, config: OpConfig) -> None:
    if config.bias is not None and not config.bias.is_float:
        raise ConfigError(f"op {op.name!r}: a bias is kept in fp32; leave bias out of its configuration")
    if config.output is not None and not config.output.is_float:
        raise ConfigError(f"op {op.name!r}: outputs are quantized where they are read; leave output out")
    if config.weight is None or config.weight.is_float:
        raise ConfigError(f"op {op.name!r}: quantized activations need a quantized weight; give weight a dtype")
    handler.check_spec(module, config.weight, op.name)
    spec = config.weight.with_axis(handler.channel_axis, handler.group_axis)
    module.weight_spec = spec
    module.float_weight = id(module.weight)
    module.norm = ()
    module.weight_quantizer = WeightQuantizer(op.name, spec).to(module.weight.device)
    module.weight_quantizer.train(module.training)
    swap(module, PreparedWeighted)


def _attach_projections(state: QuantizationState, module: Any, op: Op, config: OpConfig) -> None:
    is_float = quantized_activation(config) is None
    if not is_float and config.quant_mode != "dynamic":
        raise ConfigError(
            f"op {op.name!r}: inputs and hidden states of {op.type} have dynamic ranges or none; ask for dynamic "
            "('w4a8:dynamic') or weight-only ('w4') quantization"
        )
    for name, projection in add_projections(module).items():
        part = replace(op, name=f"{op.name}.{name}" if op.name else name)
        projection.handler, projection.op_name, projection.op_config = LinearHandler(), part.name, config
        slots = () if is_float else (state.input_quantizer(op.name, Read(EVERYWHERE, name, None), config),)
        projection.input_quantizers = InputQuantizers(part.name, state.run, always=slots)
        projection.training = module.training
        _attach_weight(projection, projection.handler, part, config)
    quantizers = [quantizer for part in projections(module).values() for quantizer in part.input_quantizers]
    module.input_quantizers.always = tuple(quantizers)
    swap(module, QuantizedRecurrent)


def weighted_parts(module: Any) -> list[WeightedModule]:
    """What holds the quantized weights of an op: the module itself, or the linear maps of a recurrent one."""
    if isinstance(module, QuantizedRecurrent):
        return list(projections(module).values())
    return [module] if isinstance(module, WeightedModule) else []


def _fold_norm(model: nn.Module, state: QuantizationState, module: Any, op: Op) -> None:
    if op.norm:
        norm: Any = model.get_submodule(op.norm)
        swap(norm, FoldedBatchNorm)
        norm.op_name, norm.run = op.name, state.run
        module.norm = (norm,)


def _release_norm(module: Any) -> None:
    (norm,) = module.norm
    unswap(norm)
    del norm.op_name, norm.run
    module.norm = ()


def unfold_norm(state: QuantizationState, module: Any) -> None:
    """Make the BatchNorm of a prepared op a module of its own again: a path was found that does not go through it."""
    _release_norm(module)
    name = module.op_name
    state.graph.ops[name] = replace(state.graph.ops[name], norm="")
    _calibrate_weight(state, module)


def _calibrate_weight(state: QuantizationState, module: Any) -> None:
    module.weight_quantizer.calibrate(weight_to_quantize(module))
    state.weights_measured.pop(module.op_name, None)
    note_weight_sqnr(state, module)


def note_weight_sqnr(state: QuantizationState, module: PreparedWeighted) -> None:
    """Measure what quantization leaves of a weight, if it has changed since it was last measured."""
    weight = module.weight.detach()
    seen = None if weight.is_inference() else (weight.data_ptr(), module.weight._version)
    if seen is not None and state.weights_measured.get(module.op_name) == seen:
        return
    state.weights_measured[module.op_name] = seen
    weight = weight_to_quantize(module)
    packed = QuantizedTensor.from_float(weight, module.weight_quantizer.params_of(weight), module.weight_spec)
    parts = ((weight[rows] if weight.ndim else weight, piece.dequantize()) for rows, piece in packed.pieces())
    state.weight_sqnr[module.op_name] = sqnr(parts)


def _add_calls(state: QuantizationState, inputs: InputQuantizers, op: Op, config: OpConfig) -> None:
    if quantized_activation(config) is None:
        inputs.always = ()
    for read in reads(op, config):
        if read.site is EVERYWHERE:
            inputs.always = (state.input_quantizer(op.name, read, config),)
        elif read.site not in inputs.by_site:
            inputs.by_site[read.site] = (state.input_quantizer(op.name, read, config),)


def _attach_functions(model: nn.Module, state: QuantizationState) -> None:
    for op in state.graph:
        module = model.get_submodule(op.name) if op.kind == "module" else None
        if module is None:
            _attach_function(model, state, op)
        elif not isinstance(module, QuantizedModule | FloatModule):
            swap(module, FloatModule)
    # The model itself sees the functions of modules that had none when they were recorded.
    root = set() if isinstance(model, QuantizedModule | FloatModule) else {""}
    for name in root | set(state.graph.order):
        scope = scope_of(model, state, name)
        scope.active, scope.order = True, state.graph.order.get(name, [])


def _attach_weights_read_by_code(model: nn.Module, state: QuantizationState) -> None:
    _keep_from_fused_functions(model)
    for name in {"", *state.graph.readers}:  # a part of the model may be called by itself
        if not isinstance(model.get_submodule(name), QuantizedModule | FloatModule):
            scope_of(model, state, name)
    _refuse_reading_recurrent(model, state)
    read = {name: module for name in state.graph.read_by_code if _has_weight(module := model.get_submodule(name))}
    ops = {op.name: model.get_submodule(op.name) for op in state.graph if op.role == "weighted" and op.kind == "module"}
    weighted = {name: module for name, module in ops.items() if _has_weight(module)}
    for (one, module), (other, sharing) in product(read.items(), weighted.items()):
        if module.weight is sharing.weight and _precision(module) != _precision(sharing):
            raise ConfigError(
                f"ops {one!r} and {other!r} share a weight that the model's code reads by itself, so they must have "
                "one weight precision; give both the same"
            )
    state.run.read_by_code = [module for module in read.values() if isinstance(module, WeightedModule | HalfModule)]


def _refuse_reading_recurrent(model: nn.Module, state: QuantizationState) -> None:
    for name in state.graph.read_by_code:
        if isinstance(model.get_submodule(name), QuantizedRecurrent):
            raise ModelError(
                f"op {name!r}: the model's own code reads a weight of it, which is packed among others once converted; "
                "leave the op fp32"
            )


def _has_weight(module: nn.Module) -> bool:
    """Whether it has one weight, under that name."""
    return isinstance(handler_of(module), WeightedHandler)


def _precision(module: nn.Module) -> TensorSpec | DataType | None:
    if isinstance(module, HalfModule):
        return module.half_type
    return module.weight_spec if isinstance(module, WeightedModule) else None


def _keep_from_fused_functions(model: nn.Module) -> None:
    """Keep PyTorch's transformers from functions that read the float weights of the layers inside."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # made from a padding mask, and only the fused functions take one


def _attach_function(model: nn.Module, state: QuantizationState, op: Op) -> None:
    scope = scope_of(model, state, op.scope)
    config = state.requested(op.info.key)
    for call in op.calls:
        key = (op.type, call.site)
        if key in scope.slots:
            continue
        if config is None or quantized_activation(config) is None or not call.quantizable:
            scope.slots[key] = (None,) * (1 if FUNCTIONAL_TYPES[op.type].shares_params else len(call.producers))
            if config is not None and config.half is not None and call.quantizable:
                scope.halves[key] = config.half
        else:
            found = reads_of_call(op, call)
            scope.slots[key] = tuple(state.input_quantizer(op.name, read, config) for read in found)


def scope_of(model: nn.Module, state: QuantizationState, name: str) -> FunctionalScope:
    """The functional scope of a module, made where it has none yet."""
    module: Any = model.get_submodule(name)
    if not isinstance(module, ScopedModule):
        module.functional_scope = FunctionalScope(name, state.run)
        swap(module, ScopedModule)
    scope: FunctionalScope = module.functional_scope
    return scope
