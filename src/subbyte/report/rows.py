"""One row for each op: what it was asked to be, what it is, and what that costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.attach import note_weight_sqnr, weighted_parts
from subbyte.adaptor.pytorch.coverage import parameter_claims
from subbyte.adaptor.pytorch.functional_mode import ScopedModule
from subbyte.adaptor.pytorch.graph import Op
from subbyte.adaptor.pytorch.half_module import HalfModule
from subbyte.adaptor.pytorch.kernels import KernelModule
from subbyte.adaptor.pytorch.overflow import largest_sum, overflows
from subbyte.adaptor.pytorch.quantized_module import (
    ConvertedWeighted,
    PreparedWeighted,
    QuantizedModule,
    WeightedModule,
)
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.adaptor.pytorch.state import QuantizationState, state_of
from subbyte.adaptor.pytorch.swap import float_class
from subbyte.adaptor.pytorch.weight import WeightQuantizer
from subbyte.dtypes import DataType
from subbyte.errors import listing
from subbyte.kernels import used_isa
from subbyte.numerics import EXACT_IN_FP32, packed_size
from subbyte.spec import OpConfig, TensorSpec

Row = dict[str, Any]


def rows_of(model: nn.Module) -> list[Row]:
    """A row for each op of a prepared or converted model, in the order they run."""
    state = state_of(model)
    claims = parameter_claims(state.graph, state.float_parameters)
    return [_row(model, state, op, claims[op.name]) for op in state.graph if _is_shown(op)]


def rows_beside_ops(model: nn.Module) -> list[Row]:
    """Return a row for each module whose own parameters no op holds or, as far as recorded, multiplies by."""
    state = state_of(model)
    claimed = set[str]().union(*parameter_claims(state.graph, state.float_parameters).values())
    left: dict[str, list[str]] = {}
    for name in state.float_parameters:
        if name not in claimed:
            left.setdefault(name.rpartition(".")[0], []).append(name)
    return [_row_beside_ops(model, state, module, names) for module, names in left.items()]


def _row_beside_ops(model: nn.Module, state: QuantizationState, name: str, parameters: Sequence[str]) -> Row:
    module = model.get_submodule(name)
    count = sum(state.float_parameters[each] for each in parameters)
    kind = float_class(module).__name__
    return {
        "name": name or "(model)",
        "type": kind,
        "requested": "fp32",
        "realized": "fp32",
        "float_because": f"{kind} is no op type of a capability, and its own code reads these parameters",
        "weight_dtype": "fp32",
        "activation_dtype": "fp32",
        "weight_bits": 32,
        "activation_bits": 32,
        "is_quantized": False,
        "params": count,
        "bytes": sum(one.nbytes for one in module.parameters(recurse=False)),
        "float_bytes": 4 * count,
        "macs": None,
        "kernel": "float",
        "weight_sqnr": None,
        "activation_sqnr": None,
        "positions": [],
    }


def _is_shown(op: Op) -> bool:
    return op.quantizable or bool(op.macs or op.parameters) or op.unfollowed


def _row(model: nn.Module, state: QuantizationState, op: Op, claimed: Iterable[str]) -> Row:
    module: Any = model.get_submodule(op.scope if op.kind == "function" else op.name)
    quantizers = _input_quantizers(module, op)
    parts = weighted_parts(module) if op.kind == "module" else []
    for part in parts:
        if isinstance(part, PreparedWeighted):
            note_weight_sqnr(state, part)  # it may have been trained since
    half = _half(module, op)
    weight = _weight_spec(parts[0]) if parts else None
    activation = quantizers[0].spec if quantizers else None
    if half is not None:
        weight, activation = TensorSpec(half) if op.role == "weighted" else None, TensorSpec(half)
    parameters = _parameters(module) if op.kind == "module" else _read_parameters(model, op)
    return {
        "name": op.name,
        "type": op.type,
        "requested": _text(state.config.op.get(op.info.key)),
        "realized": _text(_realized(weight, activation, state.config.op.get(op.info.key))),
        "float_because": "" if weight or activation else _reason(state, op),
        "weight_dtype": weight.dtype.name if weight else (str(half or "fp32") if parameters else None),
        "activation_dtype": activation.dtype.name if activation else "fp32",
        "weight_bits": weight.dtype.bits if weight else (32 if half is None else half.bits),
        "activation_bits": activation.dtype.bits if activation else 32,
        "is_quantized": any(spec is not None and not spec.is_float for spec in (weight, activation)),
        "params": sum(state.float_parameters[name] for name in claimed),
        "bytes": sum(size for _, size in parameters.values()),
        "float_bytes": sum(4 * count for count, _ in parameters.values()),
        "macs": op.macs if op.calls else None,  # what no forward reached is not known
        "kernel": _kernel(module, op, quantizers) if half is None else f"float: cast to {half} and back",
        "weight_sqnr": _weight_sqnr(state, op, parts),
        "activation_sqnr": state.activation_sqnr.get(op.name),
        "positions": sorted(op.positions),
    }


def _text(config: OpConfig | None) -> str:
    return "fp32" if config is None else str(config)


def _reason(state: QuantizationState, op: Op) -> str:
    """Which rule, or what the capability does not list, keeps an op float."""
    sources = state.config.sources.get(op.info.key, {})
    rule = sources.get("weight.dtype") or sources.get("activation.dtype") or sources.get("quant_mode")
    if rule:
        return rule
    if op.unfollowed:
        return "it reads a tensor whose origin is not known"
    if op.kind == "function" and op.parameters:
        return f"the model's own code multiplies by {listing(op.parameters)}, and {op.type} by a parameter stays float"
    if not op.quantizable:
        return f"one input of this {op.type} is a constant, a parameter or a mask"
    if op.info.key in state.config.op:  # a trial of a search has no sources
        return "requested"
    return "neither the request nor the capability quantizes this op type"


def _realized(weight: TensorSpec | None, activation: TensorSpec | None, asked: OpConfig | None) -> OpConfig:
    """What stands in the model, read off its modules; the mode follows from what quantizes the input."""
    mode = asked.quant_mode if asked is not None else "static"
    limit = asked.accumulator if asked is not None else None
    return OpConfig(weight=weight, activation=activation, quant_mode=mode, accumulator=limit)


def _input_quantizers(module: Any, op: Op) -> list[InputQuantizer]:
    if op.kind == "module":
        return list(module.input_quantizers) if isinstance(module, QuantizedModule) else []
    if not isinstance(module, ScopedModule):
        return []
    sites = {call.site for call in op.calls}
    slots = [
        slots for (kind, site), slots in module.functional_scope.slots.items() if kind == op.type and site in sites
    ]
    return [quantizer for each in slots for quantizer in each if quantizer is not None]


def _half(module: Any, op: Op) -> DataType | None:
    """The float type of 16 bits that an op computes in, if it does."""
    if op.kind == "module":
        return module.half_type if isinstance(module, HalfModule) else None
    halves = module.functional_scope.halves if isinstance(module, ScopedModule) else {}
    return next((halves[op.type, call.site] for call in op.calls if (op.type, call.site) in halves), None)


def _weight_sqnr(state: QuantizationState, op: Op, parts: Sequence[WeightedModule]) -> float | None:
    """Of several matrices that of the worst."""
    figures = [state.weight_sqnr[part.op_name] for part in parts if part.op_name in state.weight_sqnr]
    return min(figures, default=state.weight_sqnr.get(op.name))


def _weight_spec(module: WeightedModule) -> TensorSpec:
    spec = module.weight_spec
    # The axis that the op filled in was not asked for.
    return TensorSpec.from_dict({key: value for key, value in spec.to_dict().items() if key != "axis"})


@dataclass(frozen=True)
class StoredWeight:
    """A weight that is quantized or in 16 bits.

    Args:
        origin: the same of two that were one float weight, and are kept at two precisions.
        spec: how it is kept.
        count: of its values.
        float_bytes, bytes: in float, and now.
    """

    origin: int
    spec: TensorSpec
    count: int
    float_bytes: int
    bytes: int


def stored_weights(model: nn.Module) -> list[StoredWeight]:
    """Every weight that is quantized or in 16 bits; those that several ops share at one precision once."""
    found: dict[tuple[int, TensorSpec], StoredWeight] = {}
    for module in model.modules():
        if isinstance(module, WeightedModule):
            own = StoredWeight(module.float_weight, module.weight_spec, *_weight_size(module))
            found[id(module.weight), module.weight_spec] = own
        elif isinstance(module, HalfModule):
            spec = TensorSpec(module.half_type)
            for name, parameter in module.named_parameters(recurse=False):
                count, before = parameter.numel(), parameter.numel() * module.float_type.itemsize
                origin = module.float_weights[name]
                found[id(parameter), spec] = StoredWeight(origin, spec, count, before, _nbytes(parameter, module))
    return list(found.values())


def _weight_size(module: Any) -> tuple[int, int, int]:
    if isinstance(module, ConvertedWeighted):
        tensor = module.weight.tensor
        return tensor.numel(), tensor.numel() * module.weight.float_dtype.itemsize, tensor.nbytes
    quantizer: WeightQuantizer = module.weight_quantizer
    params = quantizer.params
    size = packed_size(module.weight.numel(), quantizer.spec.dtype.bits) + params.scale.nbytes
    size += 0 if params.zero_point is None else params.zero_point.nbytes
    return module.weight.numel(), module.weight.nbytes, size


def _parameters(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Of each parameter: how many values, how many bytes."""
    found = {name: (p.numel(), _nbytes(p, module)) for name, p in module.named_parameters(recurse=False)}
    for part in weighted_parts(module):
        count, _, size = _weight_size(part)
        factor = part.norm_factor if isinstance(part, ConvertedWeighted) else None
        found[getattr(part, "parameter", "weight")] = (count, size + (0 if factor is None else factor.nbytes))
    return found


def _nbytes(parameter: Tensor, module: nn.Module) -> int:
    """What a parameter takes once the model is converted."""
    return parameter.numel() * module.half_type.bits // 8 if isinstance(module, HalfModule) else parameter.nbytes


def _read_parameters(model: nn.Module, op: Op) -> dict[str, tuple[int, int]]:
    """Of each parameter that a function multiplies by and no other row has, as `_parameters`."""
    found = dict(model.named_parameters(remove_duplicate=False))
    owned = {f"{module.op_name}.weight" for module in model.modules() if isinstance(module, WeightedModule)}
    own = [name for name in op.parameters if name in found and name not in owned]
    return {name: (found[name].numel(), found[name].nbytes) for name in own}


def _kernel(module: Any, op: Op, quantizers: list[InputQuantizer]) -> str:
    parts = weighted_parts(module) if op.kind == "module" else []
    if not parts:
        if not quantizers:
            return "float"
        return "reference: integers first" if op.role == "matmul" else "reference: float on quantized input"
    return "; ".join(dict.fromkeys(_kernel_of(part, list(part.input_quantizers)) for part in parts))


def _kernel_of(module: Any, quantizers: list[InputQuantizer]) -> str:
    inputs: Sequence[InputQuantizer | None] = quantizers or [None]
    if isinstance(module, KernelModule) and all(module.runs(module, quantizer) for quantizer in inputs):
        return module.kernel
    if not module.handler.takes_activation and isinstance(module, ConvertedWeighted):
        return f"{used_isa()}: rows of packed codes"
    if not quantizers:
        return "reference: dequantized weight"
    if largest_sum(module) is None:
        return "reference: grid values in fp32"
    kind = "fp64" if (largest_sum(module) or 0) >= EXACT_IN_FP32 else "fp32"
    return "; ".join(filter(None, [f"reference: integers first in {kind}", overflows(module)]))
