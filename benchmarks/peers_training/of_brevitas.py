"""Brevitas: its quantized layers, integer ones with scales that are parameters, binary ones as it has them."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from brevitas.inject.enum import ScalingImplType
from brevitas.nn import QuantConv2d, QuantLinear
from brevitas.quant import (
    Int8ActPerTensorFloat,
    Int8WeightPerChannelFloat,
    SignedBinaryActPerTensorConst,
    SignedBinaryWeightPerTensorConst,
    Uint8ActPerTensorFloat,
)
from peers_recovery.setting import Setting
from torch import Tensor, nn


class _Weight(Int8WeightPerChannelFloat):
    """The full range; a scale that begins with the weight's and is learned."""

    scaling_impl_type = ScalingImplType.PARAMETER_FROM_STATS
    narrow_range = False


class _Input(Uint8ActPerTensorFloat):
    """A scale that begins with the first batch's and is learned."""

    collect_stats_steps = 1


class _SignedInput(Int8ActPerTensorFloat):
    """The same, for inputs that are negative as well."""

    collect_stats_steps = 1


@dataclass(frozen=True)
class Quantizers:
    """Which of them tensors get.

    Args:
        binary_at_one_bit: else the integer quantizer is asked for one bit.
    """

    binary_at_one_bit: bool


BINARY_AT_ONE_BIT, INTEGERS = Quantizers(binary_at_one_bit=True), Quantizers(binary_at_one_bit=False)


def to_train(
    model: nn.Module, setting: Setting, sample: Tensor, quantizers: Quantizers = BINARY_AT_ONE_BIT
) -> nn.Module:
    """A copy with other layers.

    Args:
        model: float.
        setting: how it is quantized.
        sample: a batch; it tells which inputs are negative as well, and gives scales their first values.
        quantizers: which serve.
    """
    signed = _signed_inputs(model, sample)
    copied = deepcopy(model)
    names = {module: name for name, module in copied.named_modules()}

    def made(module: nn.Module, bits: int) -> nn.Module:
        of_input = 8 if names[module] in setting.wide else setting.activation_bits
        options = _of_weight(bits, quantizers) | _of_input(of_input, names[module] in signed, quantizers)
        return _layer(module, options)

    quantized = setting.replace_layers(copied, made).train()
    with torch.no_grad():
        quantized(sample)  # makes parameters of its statistics
    return quantized


def _of_weight(bits: int, quantizers: Quantizers) -> dict[str, Any]:
    if bits == 1 and quantizers.binary_at_one_bit:
        return {"weight_quant": SignedBinaryWeightPerTensorConst}
    return {"weight_quant": _Weight, "weight_bit_width": bits}


def _of_input(bits: int | None, is_signed: bool, quantizers: Quantizers) -> dict[str, Any]:
    if bits is None:
        return {}
    if bits == 1 and quantizers.binary_at_one_bit:
        return {"input_quant": SignedBinaryActPerTensorConst}
    return {"input_quant": _SignedInput if is_signed else _Input, "input_bit_width": bits}


def _layer(module: nn.Module, quantizers: dict[str, Any]) -> nn.Module:
    options = {"bias": module.bias is not None, **quantizers}
    if isinstance(module, nn.Conv2d):
        made = QuantConv2d(
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding,
            module.dilation, module.groups, **options,
        )  # fmt: skip
    else:
        made = QuantLinear(module.in_features, module.out_features, **options)
    made.load_state_dict(module.state_dict(), strict=False)  # it has scales besides
    return made


def _signed_inputs(model: nn.Module, sample: Tensor) -> set[str]:
    """The layers whose inputs are negative somewhere."""
    found: set[str] = set()
    seen = deepcopy(model).eval()
    for name, module in seen.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_pre_hook(
                lambda _, inputs, name=name: found.add(name) if bool((inputs[0] < 0).any()) else None
            )
    with torch.no_grad():
        seen(sample)
    return found
