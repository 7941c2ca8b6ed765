"""One op of a float model, with only its weight or only its inputs quantized as in the quantized model."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.comparison.op_error import OpError, WeightChannels, spread
from subbyte.adaptor.pytorch.comparison.quantizer_use import QuantizerUse, WatchedQuantizer
from subbyte.adaptor.pytorch.inputs import Slots
from subbyte.adaptor.pytorch.modules import WeightedHandler
from subbyte.adaptor.pytorch.quantized_module import (
    ConvertedWeighted,
    PreparedWeighted,
    QuantizedModule,
    WeightedModule,
)
from subbyte.adaptor.pytorch.quantizer import DynamicQuantizer, InputQuantizer
from subbyte.adaptor.pytorch.recurrent import QuantizedRecurrent, projections
from subbyte.adaptor.pytorch.swap import float_class
from subbyte.adaptor.pytorch.weight import fold_into, folds_first
from subbyte.calibration import calibrate_tensor
from subbyte.numerics import QuantizedTensor, sqnr
from subbyte.spec import QuantParams, TensorSpec


def watched(slots: Slots, error: OpError, label: str = "input") -> Any:
    """The quantizers of an op's inputs, counting in `error` what they quantize; None where none stands."""
    return tuple(
        None if quantizer is None else _watched(quantizer, error, f"{label} {index}" if len(slots) > 1 else label)
        for index, quantizer in enumerate(slots)
    )


def _watched(quantizer: InputQuantizer, error: OpError, name: str) -> WatchedQuantizer:
    use = QuantizerUse(quantizer.spec, is_static=not isinstance(quantizer, DynamicQuantizer))
    return WatchedQuantizer(quantizer, error.uses.setdefault(name, use))


def with_weight(module: Any, x: Any, *extra: Any) -> Any:
    """The output on a float input, BatchNorm included; None where the weight is not quantized.

    Args:
        module: of the quantized model.
        x, extra: the arguments of the float op.
    """
    if isinstance(module, QuantizedRecurrent):
        maps = {name: _weight_of_map(part) for name, part in projections(module).items()}
        return module.handler.run(module, maps, x, *extra)
    if not isinstance(module, WeightedModule):
        return None
    if not module.handler.takes_activation:
        return module.rows(x).to(module.row_dtype)
    return module.on_float_input(x, module.operand(), *extra)


def _weight_of_map(part: Any) -> Any:
    return lambda x: part.on_float_input(x, part.operand())


def with_inputs(module: Any, float_module: Any, slots: Slots, error: OpError, x: Any, *extra: Any) -> Any:
    """The output, without BatchNorm, of the float weight on the quantized input; None where that stays float.

    Args:
        module, float_module: of the quantized and of the float model.
        slots: the quantizers of this call.
        error: of the op, where is counted what they quantize.
        x, extra: the arguments of the float op.
    """
    if isinstance(module, QuantizedRecurrent):
        if not any(part.input_quantizers.always for part in projections(module).values()):
            return None
        maps = {name: _inputs_of_map(part, name, float_module, error) for name, part in projections(module).items()}
        return module.handler.run(module, maps, x, *extra)
    if not isinstance(module, QuantizedModule) or not slots or slots[0] is None:
        return None
    (quantizer,) = watched(slots, error)
    return float_class(float_module).forward(float_module, module.handler.quantized(x, quantizer), *extra)


def _inputs_of_map(part: Any, name: str, float_module: Any, error: OpError) -> Any:
    (quantizer,) = watched(part.input_quantizers.always, error, f"input {name}")
    weight, bias = getattr(float_module, f"weight_{name}"), getattr(float_module, f"bias_{name}", None)
    return lambda x: F.linear(quantizer.forward(x), weight, bias)


def channel_axis(module: Any) -> int:
    """The axis of the output channels in what a module gives, counted from the last."""
    handler = getattr(module, "handler", None)
    return -handler.over_output(torch.empty(1)).ndim if isinstance(handler, WeightedHandler) else -1


def note_weights(error: OpError, module: Any, float_module: Any, norm: Any, noted: Mapping[str, float]) -> None:
    """Count how the weights of a quantized op use their codes.

    Args:
        error: of the op.
        module, float_module: of the quantized and of the float model.
        norm: the float model's BatchNorm that the quantized op holds; or None.
        noted: by op, what quantization left of its weight, in decibels.
    """
    for name, part, weight in _weights(module, float_module):
        quantized = _packed(part)
        if norm is not None and folds_first(part.weight_spec):
            factor, _ = FoldedBatchNorm.factor_and_bias(norm, None)
            weight = fold_into(weight, factor, part.handler)
        error.uses[name] = QuantizerUse(part.weight_spec)
        error.uses[name].add_weight(weight, quantized)
        rounded = QuantizedTensor.from_float(weight, _own_params(weight, part.weight_spec), part.weight_spec)
        error.weights[name] = WeightChannels(
            _sqnr(weight, quantized),
            _sqnr(weight, rounded),
            noted.get(part.op_name),
            spread(weight, part.handler.channel_axis),
        )


def _own_params(weight: Tensor, spec: TensorSpec) -> QuantParams:
    """The parameters that the data type's own algorithm finds."""
    return calibrate_tensor(weight, replace(spec, algorithm=""))


def _sqnr(weight: Tensor, quantized: QuantizedTensor) -> float:
    return sqnr((weight[rows] if weight.ndim else weight, piece.dequantize()) for rows, piece in quantized.pieces())


def _weights(module: Any, float_module: Any) -> Iterator[tuple[str, Any, Tensor]]:
    if isinstance(module, QuantizedRecurrent):
        for name, part in projections(module).items():
            yield f"weight {name}", part, getattr(float_module, f"weight_{name}").detach().float()
    elif isinstance(module, WeightedModule):
        yield "weight", module, float_module.weight.detach().float()


def _packed(part: Any) -> QuantizedTensor:
    if isinstance(part, PreparedWeighted):
        return part.weight_quantizer.packed(part, part.handler, part.folded_norm)
    assert isinstance(part, ConvertedWeighted)
    return part.weight.tensor
