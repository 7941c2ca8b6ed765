"""Brevitas: its quantized layers, with scales that are parameters."""

from copy import deepcopy

from brevitas.inject.enum import ScalingImplType
from brevitas.nn import QuantConv2d, QuantLinear
from brevitas.quant import Int8WeightPerChannelFloat, Uint8ActPerTensorFloat
from peers_recovery.setting import Setting
from torch import nn


class _Weight(Int8WeightPerChannelFloat):
    """The full range; a scale that begins with the weight's and is learned."""

    scaling_impl_type = ScalingImplType.PARAMETER_FROM_STATS
    narrow_range = False


class _Input(Uint8ActPerTensorFloat):
    """A scale that begins with the first batch's and is learned."""

    collect_stats_steps = 1


def _layer(module: nn.Module, bits: int) -> nn.Module:
    quantizers = {"weight_quant": _Weight, "input_quant": _Input, "weight_bit_width": bits, "input_bit_width": bits}
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


def to_train(model: nn.Module, setting: Setting) -> nn.Module:
    """A copy with other layers."""
    return setting.replace_layers(deepcopy(model), _layer)
