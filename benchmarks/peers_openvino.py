"""OpenVINO's layers: int4 weights with inputs quantized at run time in groups of 128, int8 convolutions in a chain."""

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import torch
from layers import GROUP, Eight, Grouped, Layer
from openvino import Type, opset13
from torch import Tensor

CHAIN = 8


def linear_layers(x: Tensor, weight: Tensor) -> dict[str, Layer]:
    """x [rows, inputs], weight [outputs, inputs]."""
    grouped = Grouped.of(weight, 4)
    # Codes are signed and need no zero point: with one of a float type, inputs would not be quantized.
    signed = Grouped(grouped.codes ^ 8, grouped.scale, 4).packed().numpy()
    codes = openvino.Tensor(signed, openvino.Shape(list(grouped.codes.shape)), Type.i4)
    scale = grouped.scale[..., None].numpy().astype(np.float16)

    def instance() -> Callable[[], Any]:
        values = opset13.multiply(opset13.convert(opset13.constant(codes), Type.f16), opset13.constant(scale))
        matrix = opset13.reshape(values, opset13.constant(np.array(weight.shape)), False)
        given = opset13.parameter(list(x.shape), Type.f32)
        y = opset13.matmul(given, opset13.convert(matrix, Type.f32), False, True)
        return _request(openvino.Model([y], [given], "layer"), x)

    return {"OpenVINO W4 g128": Layer(instance, signed.nbytes + scale.nbytes)}


def convolution_layers(x: Tensor, weight: Tensor) -> dict[str, Layer]:
    """x [batch, channels, height, width], weight [channels, channels, 3, 3]; padding 1."""
    codes, x_scale = Eight.of_weight(weight), float(Eight.of_input(x).scale)
    low, high = (opset13.constant(np.float32(code * x_scale)) for code in (-128, 127))
    scale = codes.scale.view(-1, 1, 1, 1).numpy()

    def instance() -> Callable[[], Any]:
        y = given = opset13.parameter(list(x.shape), Type.f32)
        for _ in range(CHAIN):
            y = opset13.fake_quantize(y, low, high, low, high, 256)
            values = opset13.convert(opset13.constant(codes.codes.numpy()), Type.f32)
            matrix = opset13.multiply(values, opset13.constant(scale))
            y = opset13.convolution(y, matrix, [1, 1], [1, 1], [1, 1], [1, 1])
        return _request(openvino.Model([y], [given], "chain"), x)

    return {"OpenVINO int8 in a chain": Layer(instance, codes.codes.nbytes, in_a_call=CHAIN)}


def _request(model: Any, x: Tensor) -> Callable[[], Any]:
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP),
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    request.set_input_tensor(openvino.Tensor(x.numpy()))

    def run() -> Any:
        request.infer()
        return request.get_output_tensor()

    return run
