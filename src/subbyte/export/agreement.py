"""Whether the recording and the tensors of a checkpoint agree with each other and with a model."""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_TYPES
from subbyte.adaptor.pytorch.graph import Op
from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, InputQuantizer
from subbyte.adaptor.pytorch.state import QuantizationState
from subbyte.adaptor.pytorch.trace import takes_norm
from subbyte.calibration import algorithm_of
from subbyte.errors import CheckpointError, quoted
from subbyte.export.schema import Header, TensorFields
from subbyte.numerics import block_axis, params_problem
from subbyte.spec import OpConfig, QuantParams, TensorSpec

_PLACE = re.compile(r":(\d+)/(\d+)(?=>|$)")


def tensor_fields(tensor: Tensor) -> dict[str, object]:
    """Return what a header says of a tensor; see TensorFields."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    holds_codes = not (tensor.is_floating_point() or tensor.is_complex())
    return {"dtype": dtype, "shape": list(tensor.shape), "finite": holds_codes or bool(torch.isfinite(tensor).all())}


def check_tensors(tensors: Mapping[str, Tensor], header: Header) -> None:
    """Refuse tensors that are not those that the header lists, and aliases of others.

    Raises:
        CheckpointError: naming the first.
    """
    for name in sorted(header.tensors.keys() ^ tensors.keys()):
        where = "its header" if name in header.tensors else "its data"
        raise CheckpointError(f"tensor {quoted(name)} is in {where} only")
    for name, expected in header.tensors.items():
        found = TensorFields.model_validate(tensor_fields(tensors[name]))
        if found != expected:
            raise CheckpointError(f"tensor {quoted(name)} is {_text(found)}, and the header says {_text(expected)}")
    for alias, name in header.aliases.items():
        if alias in tensors or name not in tensors:
            raise CheckpointError(f"tensor {quoted(alias)} is said to be {quoted(name)}, which the file does not hold")


def check_recording(model: nn.Module, state: QuantizationState) -> None:
    """Refuse a recording whose ops the model does not have, or whose parts contradict each other.

    Raises:
        CheckpointError: naming the op.
    """
    modules = dict(model.named_modules())
    graph = state.graph
    for op in graph:
        _check_op(op, modules)
        for call in op.calls:
            _check_site(op, call.site)
            if op.kind == "function" and op.scope not in graph.order:
                raise CheckpointError(
                    f"op {quoted(op.name)} runs in {quoted(op.scope)}, where no function was recorded"
                )
    functions = {(op.scope, op.type, call.site) for op in graph if op.kind == "function" for call in op.calls}
    for scope, sites in graph.order.items():
        for kind, site in sites:
            if scope not in modules or (scope, kind, site) not in functions:
                raise CheckpointError(f"order: no op is {quoted(kind)} at {quoted(site)} of module {quoted(scope)}")
    norms = [op.norm for op in graph if op.norm]
    for name in norms:
        if norms.count(name) > 1:
            raise CheckpointError(f"BatchNorm {quoted(name)} is folded into two ops")
    _check_names("config", set(state.config.op), {op.info.key for op in graph if op.quantizable})
    _check_names("read_by_code", graph.read_by_code, modules.keys())
    _check_names("readers", graph.readers, modules.keys())


def check_later(by_type: Mapping[str, OpConfig]) -> None:
    """Refuse configurations for functional ops that the first forward could not apply.

    Raises:
        CheckpointError: there is no such type of op.
        ConfigError: a calibration method is unknown.
    """
    _check_names("found_later", by_type.keys(), FUNCTIONAL_TYPES.keys())
    for config in by_type.values():
        if config.activation is not None and not config.activation.is_float:
            algorithm_of(config.activation)


def check_inputs(state: QuantizationState, inputs: Mapping[str, list[str]]) -> None:
    """Refuse calls that read through other quantizers than when the model was saved.

    Args:
        state: Attached to a model.
        inputs: For each op the quantizers of its inputs when it was saved.

    Raises:
        CheckpointError: naming the op.
    """
    for op in {**inputs, **state.input_keys}:
        saved, found = inputs.get(op, []), state.input_keys.get(op, [])
        if set(saved) != set(found):
            raise CheckpointError(f"op {quoted(op)} read through {quoted(saved)}, and its calls say {quoted(found)}")


def check_quantizers(state: QuantizationState) -> None:
    """Refuse input quantizers whose values, as loaded, their specs do not allow.

    Raises:
        CheckpointError: naming the op.
    """
    for key in state.quantizers:
        quantizer: InputQuantizer = state.quantizers[key]  # type: ignore[assignment]
        problem = _quantizer_problem(quantizer)
        if problem:
            raise CheckpointError(f"input of op {quoted(quantizer.name)}: {problem}")
    for op in state.activation_sqnr.keys() & state.input_keys.keys():
        used = [state.quantizers[key] for key in state.input_keys[op]]
        if all(isinstance(each, ActivationQuantizer) and _is_unused(each) for each in used):
            raise CheckpointError(
                f"input of op {quoted(op)}: no scale is finite, although activation_sqnr says that batches came here; "
                "quantize and save the model again"
            )


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], *, strict: bool) -> None:
    """Load tensors into a model.

    Args:
        model: Loads them by its `load_state_dict`.
        tensors: By their names in the model's state_dict.
        metadata: Of that state_dict: the versions of modules, by which modules of other projects read their tensors.
        strict: Whether the tensors must be all those of the model.

    Raises:
        CheckpointError: the model does not take the tensors.
    """
    values: Any = OrderedDict(tensors)
    values._metadata = metadata
    try:
        model.load_state_dict(values, strict=strict)
    except Exception as error:  # modules of the user's load themselves, and may raise anything
        raise CheckpointError(f"its tensors do not fit this model ({type(error).__name__}: {error!s:.1000})") from error


def _check_op(op: Op, modules: Mapping[str, nn.Module]) -> None:
    place = op.name if op.kind == "module" else op.scope
    if place not in modules:
        raise CheckpointError(f"op {quoted(op.name)} belongs to module {quoted(place)}, which the model does not have")
    module = modules[place]
    found = handler_of(module) if op.kind == "module" else FUNCTIONAL_TYPES.get(op.type)
    if found is None or (found.op_type, found.role) != (op.type, op.role):
        is_now = "no op" if found is None else f"{found.op_type} ({found.role})"
        raise CheckpointError(f"op {quoted(op.name)} is {quoted(op.type)} ({op.role}), and in this model {is_now}")
    handler = found if isinstance(found, WeightedHandler) else None
    if op.norm and (op.norm not in modules or not takes_norm(handler, module, modules[op.norm])):
        raise CheckpointError(f"op {quoted(op.name)}: {quoted(op.norm)} is no BatchNorm that it can apply")
    if op.kind == "function" and op.name in modules:
        raise CheckpointError(f"op {quoted(op.name)} is a function, and the model has a module of that name")
    for call in op.calls:
        count = len(call.producers)
        if count < _operands(op):
            raise CheckpointError(f"op {quoted(op.name)} reads {_operands(op)} values, and {count} producers are named")


def _operands(op: Op) -> int:
    """Return how many values an op reads at least."""
    counts = {"add": 2, "mul": 2, "matmul": 2, "scaled_dot_product_attention": 4, "cat": 0}
    return counts.get(op.type, 1)


def _check_site(op: Op, site: str) -> None:
    if not site and op.name:
        raise CheckpointError(f"op {quoted(op.name)} has a call at no place")
    for index, count in _PLACE.findall(site):
        if not 1 <= int(index) <= int(count):
            raise CheckpointError(f"op {quoted(op.name)} has a call at {quoted(site)}, which is no place in a function")


def _check_names(field: str, named: object, known: object) -> None:
    for name in sorted(set(named) - set(known)):  # type: ignore[call-overload]
        raise CheckpointError(f"{field} names {quoted(name)}, which is no op or module of it")


def _quantizer_problem(quantizer: InputQuantizer) -> str:
    spec, scale, zero_point = quantizer.spec, quantizer.scale, quantizer.zero_point
    for name, allowed in (("quant_min", spec.qmin), ("quant_max", spec.qmax)):
        value = int(getattr(quantizer, name))
        if value != allowed:
            return f"{name} must be {allowed} for {spec}, got {value}"
    if zero_point.shape not in (torch.Size(), scale.shape):
        return f"zero_point has shape {tuple(zero_point.shape)}, and its scale {tuple(scale.shape)}"
    if not isinstance(quantizer, ActivationQuantizer):
        return "" if scale.ndim == 0 else f"a range found at run time keeps no scale of shape {tuple(scale.shape)}"
    if _is_unused(quantizer):  # the header said so too
        return _shape_problem(scale, spec)
    stated = zero_point if spec.dtype.kind == "integer" else None
    return _shape_problem(scale, spec) or params_problem(QuantParams(scale, stated), spec)


def _is_unused(quantizer: ActivationQuantizer) -> bool:
    """Return whether no batch came to a quantizer, so that it has no scale."""
    return bool(quantizer.scale.isnan().all())


def _shape_problem(scale: Tensor, spec: TensorSpec) -> str:
    """Return why a scale is not of the granularity; sizes are not known, as they are those of the inputs."""
    kind, shape = spec.granularity.kind, tuple(scale.shape)
    if kind == "per_tensor":
        fits = shape == ()
    elif kind == "per_channel" and shape:
        fits = all(size == 1 for axis, size in enumerate(shape) if axis != block_axis(spec, len(shape)))
    else:
        fits = kind != "per_token" or shape[-1:] in ((), (1,))
    return "" if fits else f"scale of shape {shape} is not {spec.granularity}"


def _text(fields: TensorFields) -> str:
    return f"{fields.dtype} {fields.shape}{'' if fields.finite else ', not all finite'}"
