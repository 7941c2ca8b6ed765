"""NNCF: bias correction on convolutions and linear maps.

Weights of eight bits are quantized on the exported graph: full correction is there only, and nothing is compiled. Of
narrower weights the graph gives chance, so that they are quantized on the modules, for which NNCF compiles an extension
at first use.
"""

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import nncf
import torch
from nncf import AdvancedQuantizationParameters, TargetDevice
from nncf.quantization.advanced_parameters import QuantizationParameters
from torch import nn

from peers_recovery.setting import Setting

os.environ.setdefault("NNCF_EXTENSION_LOAD_TIMEOUT", "600")  # its own limit is a minute


def _quantized(
    model: nn.Module, batches: Sequence[Any], setting: Setting, *, correct: bool = False, full: bool = False
) -> nn.Module:
    assert not setting.wide
    assert not setting.left_float
    assert setting.activation_bits == 8
    parameters = AdvancedQuantizationParameters(disable_bias_correction=not correct)
    if setting.weight_bits < 8:
        parameters.weights_quantization_params = QuantizationParameters(num_bits=setting.weight_bits)
    return nncf.quantize(
        _graph(model, batches[0]) if setting.weight_bits == 8 else deepcopy(model),
        nncf.Dataset(batches),
        target_device=TargetDevice.ANY if setting.weight_bits == 8 else TargetDevice.NPU,  # others refuse 4 bits
        subset_size=len(batches),
        fast_bias_correction=not full,
        advanced_parameters=parameters,
    )


def _graph(model: nn.Module, batch: torch.Tensor) -> nn.Module:
    """With any number of samples."""
    with torch.no_grad():
        shapes = ({0: torch.export.Dim.AUTO},)
        return torch.export.export(deepcopy(model), (batch,), dynamic_shapes=shapes).module()


METHODS: dict[str, Callable[[nn.Module, Sequence[Any], Setting], nn.Module]] = {
    "none": _quantized,
    "bias correction, fast": partial(_quantized, correct=True),
    "bias correction, full": partial(_quantized, correct=True, full=True),
}
