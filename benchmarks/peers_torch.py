"""PyTorch's own layers: fp32, bf16, int8 by oneDNN, int4 weights; no quantized dtypes.

The int8 ones are given codes of x, so they pay nothing for quantizing it.
"""

from functools import partial

import torch
from layers import GROUP, Eight, Grouped, Layer, of_function
from torch import Tensor
from torch.nn import functional as F

ops = torch.ops
NO_POST_OP = ("none", [], "")


def linear_layers(x: Tensor, weight: Tensor) -> dict[str, Layer]:
    """x [rows, inputs], weight [outputs, inputs]."""
    narrow = x.bfloat16()
    return {
        "torch fp32": of_function(lambda w: F.linear(x, w), weight),
        "torch bf16": of_function(lambda w: F.linear(narrow, w), weight.bfloat16()),
        "torch int8 (oneDNN)": _int8_linear(x, weight),
        "torch int4pack bf16": _int4_linear(narrow, weight),
    }


def convolution_layers(x: Tensor, weight: Tensor) -> dict[str, Layer]:
    """x [batch, channels, height, width], weight [channels, channels, 3, 3]; padding 1."""
    x = x.contiguous(memory_format=torch.channels_last)
    last = weight.contiguous(memory_format=torch.channels_last)
    return {
        "torch fp32 channels_last": of_function(lambda w: F.conv2d(x, w, padding=1), last),
        "torch int8 (oneDNN)": _int8_convolution(x, weight),
    }


def _int8_linear(x: Tensor, weight: Tensor) -> Layer:
    codes, quantized = Eight.of_weight(weight), Eight.of_input(x)
    taken, x_scale = quantized.unsigned(), float(quantized.scale)
    no_zero_point = torch.zeros(weight.shape[0], dtype=torch.int32)

    def instance() -> partial[Tensor]:
        packed = ops.onednn.qlinear_prepack(codes.codes.clone(), list(x.shape))
        scales = (codes.scale, no_zero_point)
        output = (None, 1.0, 0, torch.float32)
        return partial(ops.onednn.qlinear_pointwise, taken, x_scale, 128, packed, *scales, *output, *NO_POST_OP)

    return Layer(instance, codes.codes.nbytes)


def _int4_linear(x: Tensor, weight: Tensor) -> Layer:
    grouped = Grouped.of(weight, 4)
    packed = ops.aten._convert_weight_to_int4pack_for_cpu(grouped.codes.view(weight.shape).int(), 1)
    scales = torch.stack([grouped.scale, torch.zeros_like(grouped.scale)], -1).transpose(0, 1).bfloat16().contiguous()
    return of_function(lambda w: ops.aten._weight_int4pack_mm_for_cpu(x, w, GROUP, scales), packed)


def _int8_convolution(x: Tensor, weight: Tensor) -> Layer:
    codes, quantized = Eight.of_weight(weight), Eight.of_input(x)
    taken = quantized.unsigned().contiguous(memory_format=torch.channels_last)
    x_scale = float(quantized.scale)
    geometry = ([1, 1], [1, 1], [1, 1], 1)
    no_zero_point = torch.zeros(weight.shape[0], dtype=torch.int32)

    def instance() -> partial[Tensor]:
        packed = ops.onednn.qconv_prepack(codes.codes.clone(), codes.scale, x_scale, 128, *geometry, list(x.shape))
        scales = (codes.scale, no_zero_point, None)
        output = (1.0, 0, torch.float32)
        return partial(
            ops.onednn.qconv_pointwise, taken, x_scale, 128, packed, *scales, *geometry, *output, *NO_POST_OP
        )

    return Layer(instance, codes.codes.nbytes)
