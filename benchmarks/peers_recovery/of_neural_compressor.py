"""Intel Neural Compressor 3: GPTQ, AWQ and HQQ on linear maps, weights only.

Its HQQ takes a group from one input of successive outputs, not from successive inputs of one output.
"""

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from torch import nn

from networks import call
from peers_recovery.setting import Setting

os.environ.setdefault("HQQ_NOT_USE_HALF", "1")  # else HQQ turns half of the model to fp16; read at import

from neural_compressor.torch.quantization import AWQConfig, GPTQConfig, HQQConfig, RTNConfig, convert, prepare


def _with(kind: Callable[..., Any], **options: Any) -> Callable[[nn.Module, Sequence[Any], Setting], nn.Module]:
    def quantized(model: nn.Module, batches: Sequence[Any], setting: Setting) -> nn.Module:
        assert setting.activation_bits is None
        assert not setting.wide
        scheme = {} if kind is HQQConfig else {"use_sym": setting.symmetric}
        config = kind(bits=setting.weight_bits, group_size=setting.group_size or -1, **scheme, **options)
        for name in setting.left_float:
            config.set_local(name, kind(dtype="fp32", **options))
        prepared = prepare(deepcopy(model), config, example_inputs=batches[0])
        for batch in batches:
            call(prepared, batch)
        return convert(prepared)

    return quantized


METHODS: dict[str, Callable[[nn.Module, Sequence[Any], Setting], nn.Module]] = {
    "none": _with(RTNConfig),
    "gptq": _with(GPTQConfig, model_path="."),  # without a folder that exists it asks the Hugging Face hub for one
    "awq": _with(AWQConfig),
    "hqq": _with(HQQConfig, quant_zero=False),
}
