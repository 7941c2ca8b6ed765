"""Brevitas: GPTQ on convolutions and linear maps, weights only."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from brevitas.graph.gptq import gptq_mode
from brevitas.inject.enum import ScalingImplType
from brevitas.nn import QuantConv2d, QuantLinear
from brevitas.quant import Int8WeightPerChannelFloat
from torch import nn

from peers_recovery.setting import Setting


class FixedScale(Int8WeightPerChannelFloat):
    """The full range, with the scale that the weight has at first."""

    scaling_impl_type = ScalingImplType.PARAMETER_FROM_STATS
    narrow_range = False


class ScaleOfWeight(Int8WeightPerChannelFloat):
    """The full range, with the scale that the weight has now: GPTQ asks for it of one column at a time."""

    scaling_impl_type = ScalingImplType.STATS
    narrow_range = False


@torch.no_grad()
def _rounded(model: nn.Module, batches: Sequence[Any], setting: Setting, weight: type = FixedScale) -> nn.Module:
    assert setting.symmetric
    assert setting.group_size is None
    assert setting.activation_bits is None
    quantized = setting.replace_layers(deepcopy(model), partial(_layer, weight=weight)).eval()
    quantized(batches[0][:1])  # takes the scales from the weights
    return quantized


@torch.no_grad()
def _gptq(model: nn.Module, batches: Sequence[Any], setting: Setting, weight: type = FixedScale) -> nn.Module:
    quantized = _rounded(model, batches, setting, weight)
    with gptq_mode(quantized) as gptq:
        for _ in range(gptq.num_layers):
            for batch in batches:
                gptq.model(batch)
            gptq.update()
    return quantized


def _layer(module: nn.Module, bits: int, *, weight: type) -> nn.Module:
    options = {"bias": module.bias is not None, "weight_quant": weight, "weight_bit_width": bits}
    if isinstance(module, nn.Conv2d):
        made = QuantConv2d(
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding,
            module.dilation, module.groups, **options,
        )  # fmt: skip
    else:
        made = QuantLinear(module.in_features, module.out_features, **options)
    made.load_state_dict(module.state_dict(), strict=False)  # it has scales besides
    return made


METHODS: dict[str, Callable[[nn.Module, Sequence[Any], Setting], nn.Module]] = {
    "none": _rounded,
    "gptq": _gptq,
    "gptq, scales not fixed": partial(_gptq, weight=ScaleOfWeight),
}
