"""torchao: HQQ, AWQ and GPTQ on linear maps, weights only; SmoothQuant with dynamic activations of eight bits."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torchao.prototype.awq import AWQConfig
from torchao.prototype.gptq import GPTQConfig
from torchao.prototype.smoothquant import SmoothQuantConfig
from torchao.quantization import (
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.quantization.quant_primitives import MappingType
from torchao.quantization.quantize_.workflows import IntxChooseQParamsAlgorithm

from networks import call
from peers_recovery.setting import Setting


def _rounded(model: nn.Module, batches: Sequence[Any], setting: Setting) -> nn.Module:
    return _applied(model, _base(setting), setting)


def _hqq(model: nn.Module, batches: Sequence[Any], setting: Setting) -> nn.Module:
    assert setting.symmetric, "torchao's HQQ on the CPU finds scales only: its weights are symmetric"
    return _applied(model, _base(setting, IntxChooseQParamsAlgorithm.HQQ_SCALE_ONLY), setting)


def _awq(model: nn.Module, batches: Sequence[Any], setting: Setting) -> nn.Module:
    base = _base(setting)
    return _observed(model, batches, setting, AWQConfig(base, "prepare"), AWQConfig(base, "convert"))


def _gptq(model: nn.Module, batches: Sequence[Any], setting: Setting) -> nn.Module:
    base = Int4WeightOnlyConfig(group_size=setting.group_size)
    return _observed(model, batches, setting, GPTQConfig("observe", base), GPTQConfig("convert", base))


def _smoothquant(model: nn.Module, batches: Sequence[Any], setting: Setting) -> nn.Module:
    # Without running maxima it puts all batches into one tensor, which those of unequal lengths do not fit.
    first, second, last = (
        SmoothQuantConfig(_base(setting), step, use_running_absmax=True)
        for step in ("prepare", "prepare_for_smoothquant_smoothing_factor", "convert")
    )
    return _observed(model, batches, setting, first, second, last)


def _base(setting: Setting, algorithm: Any = IntxChooseQParamsAlgorithm.AFFINE) -> Any:
    assert not setting.wide
    if setting.activation_bits is not None:
        assert setting.dynamic
        assert setting.activation_bits == setting.weight_bits == 8
        return Int8DynamicActivationInt8WeightConfig()
    return IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{setting.weight_bits}"),
        granularity=PerGroup(setting.group_size) if setting.group_size else PerAxis(0),
        mapping_type=MappingType.SYMMETRIC if setting.symmetric else MappingType.ASYMMETRIC,
        intx_choose_qparams_algorithm=algorithm,
    )


def _applied(model: nn.Module, config: Any, setting: Setting) -> nn.Module:
    quantized = deepcopy(model)
    quantize_(quantized, config, lambda module, name: _is_meant(module, name, setting))
    return quantized


def _observed(model: nn.Module, batches: Sequence[Any], setting: Setting, first: Any, *steps: Any) -> nn.Module:
    """After each step but the last the calibration data is run."""
    quantized = _applied(model, first, setting)
    for step in steps:
        for batch in batches:
            call(quantized, batch)
        quantize_(quantized, step, lambda module, name: _is_meant(module, name, setting))
    return quantized


def _is_meant(module: nn.Module, name: str, setting: Setting) -> bool:
    return isinstance(module, nn.Linear) and name not in setting.left_float


METHODS: dict[str, Callable[[nn.Module, Sequence[Any], Setting], nn.Module]] = {
    "none": _rounded,
    "hqq": _hqq,
    "awq": _awq,
    "gptq": _gptq,
    "smoothquant": _smoothquant,
}
