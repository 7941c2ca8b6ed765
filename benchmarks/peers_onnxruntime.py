"""onnxruntime's layers, inputs and outputs bound beforehand; all sessions share one pool of threads.

fp32 inputs are quantized within MatMulNBits; QLinearConv is given codes, in a chain as in a network.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from layers import GROUP, Eight, Grouped, Layer
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

CHAIN = 8
DOMAINS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]

onnxruntime.set_global_thread_pool_sizes(torch.get_num_threads(), 1)


def linear_layers(x: Tensor, weight: Tensor) -> dict[str, Layer]:
    """x [rows, inputs], weight [outputs, inputs]."""
    float_weight = weight.T.contiguous().numpy()
    multiply = helper.make_node("MatMul", ["x", "w"], ["y"])
    layers = {"onnxruntime fp32": _linear(x, weight.shape[0], multiply, {"w": float_weight})}
    for bits in (4, 2):
        grouped = Grouped.of(weight, bits)
        node = helper.make_node(
            "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=weight.shape[1], N=weight.shape[0],
            bits=bits, block_size=GROUP, accuracy_level=4,
        )  # fmt: skip
        constants = {"w": grouped.packed().numpy(), "s": grouped.scale.reshape(-1).numpy()}
        layers[f"onnxruntime W{bits} g128"] = _linear(x, weight.shape[0], node, constants)
    return layers


def convolution_layers(x: Tensor, weight: Tensor) -> dict[str, Layer]:
    """x [batch, channels, height, width], weight [channels, channels, 3, 3]; padding 1."""
    codes, quantized = Eight.of_weight(weight), Eight.of_input(x)
    constants = {
        "xs": quantized.scale.numpy().reshape(()), "xz": np.array(128, np.uint8),
        "w": codes.codes.numpy(), "ws": codes.scale.numpy(), "wz": np.zeros(weight.shape[0], np.int8),
    }  # fmt: skip
    names = ["x", *(f"y{i}" for i in range(1, CHAIN)), "y"]
    nodes = [
        helper.make_node(
            "QLinearConv", [before, "xs", "xz", "w", "ws", "wz", "xs", "xz"], [after],
            kernel_shape=[3, 3], pads=[1, 1, 1, 1],
        )
        for before, after in pairwise(names)
    ]  # fmt: skip
    model = _model(nodes, constants, TensorProto.UINT8, x.shape, x.shape)
    taken = quantized.unsigned().contiguous().numpy()
    layer = Layer(lambda: _bound(model, taken, tuple(x.shape)), codes.codes.nbytes, in_a_call=CHAIN)
    return {"onnxruntime int8 in a chain": layer}


def _linear(x: Tensor, outputs: int, node: Any, constants: dict[str, np.ndarray]) -> Layer:
    shape = (x.shape[0], outputs)
    model = _model([node], constants, TensorProto.FLOAT, x.shape, shape)
    return Layer(lambda: _bound(model, x.numpy(), shape), sum(each.nbytes for each in constants.values()))


def _model(
    nodes: list[Any], constants: dict[str, np.ndarray], kind: int, x_shape: tuple[int, ...], y_shape: tuple[int, ...]
) -> bytes:
    x = helper.make_tensor_value_info("x", kind, list(x_shape))
    y = helper.make_tensor_value_info("y", kind, list(y_shape))
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "layer", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=DOMAINS, ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _bound(model: bytes, x: np.ndarray, shape: tuple[int, ...]) -> Callable[[], Any]:
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), x.dtype.type, "cpu")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", y)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return y

    return run
