"""binary_linear: a linear layer on bits of the input and weights of -1, 0 and +1, by popcount.

`y[m, n] = float(t) * (x_scale[m] * w_scale[n]) (+ bias[n])`, where `t = sum over k of x[m, k] w[n, k]` is exact, x
being quantized to its levels, and every product and sum of floats is rounded by itself.
"""

from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.binary_weight import PANEL, WORD, BinaryWeight, Levels, check_weight, levels_of
from subbyte.kernels.epilogue import Epilogue, define_fused
from subbyte.kernels.gpu import by_triton
from subbyte.kernels.operator import define
from subbyte.kernels.packing import unpack_codes


def binary_linear(
    x: Tensor,
    weight: BinaryWeight,
    bias: Tensor,
    levels: Levels,
    x_scale: Tensor,
    x_zero_point: Tensor,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """Quantize the rows of x to two or three levels and multiply them with a weight.

    Args:
        x: fp32 [rows, inputs]; or of two levels bits already, 1 for the upper: uint8 [rows, ceil(inputs / 8)], each
            row as `sign_pack` gives it.
        weight: laid out.
        bias: fp32 [outputs] as `weight.in_panels` gives it, or empty.
        levels: of x.
        x_scale, x_zero_point: fp32 and int32, [1] or [rows]; the zero point of levels that are not rounded to is 0.
        epilogue: what is done with the results.

    Returns:
        fp32 [rows, outputs], or what the epilogue makes of it.

    Raises:
        RuntimeError: something does not fit.
    """
    arguments = (
        x,
        weight.packed,
        weight.scale,
        weight.sums,
        weight.ones,
        bias,
        x_scale,
        x_zero_point,
        levels.low,
        levels.high,
        levels.count,
        levels.rounds,
        weight.outputs,
        weight.has_masks,
    )
    if epilogue is None and x.dtype == torch.uint8:  # which only the operator that knows the inputs takes
        epilogue = Epilogue()
    y: Tensor = (
        torch.ops.subbyte.binary_linear(*arguments)
        if epilogue is None
        else torch.ops.subbyte.binary_linear_fused(*arguments, weight.channels, *epilogue.arguments(x.device))
    )
    return y


def _binary_linear(x: Tensor, *arguments: Any) -> Tensor:
    check_binary_linear(x, arguments)
    packed, scale, sums, ones, bias, x_scale, x_zero_point, low, high, count, rounds, outputs, has_masks = arguments
    weight = BinaryWeight(packed, scale, sums, ones, has_masks, outputs, x.shape[1], (1, 1), 1)
    levels = Levels(low, high, count, rounds)
    grid = levels_of(x, levels, x_scale[:, None], x_zero_point[:, None])
    total = grid.double() @ weight.values().flatten(1).T.double()
    y: Tensor = total.float() * (x_scale[:, None] * weight.out_of_panels(scale))
    return y + weight.out_of_panels(bias) if bias.numel() else y


def _floats_of(x: Tensor, arguments: tuple[Any, ...]) -> Tensor:
    """x, which may be bits, as floats that are quantized to the levels that the bits stand for."""
    x_scale, x_zero_point, low, high, count = arguments[5:10]
    inputs = arguments[-1]
    width = -(-inputs // 8) if x.dtype == torch.uint8 else inputs
    if x.ndim != 2 or x.shape[1] != width:
        raise KernelError("x has rows, each of as many columns as the layer has inputs, or of their bits")
    if x.dtype != torch.uint8:
        return x
    if count != 2:
        raise KernelError("bits stand for two levels")
    bits = unpack_codes(x.reshape(-1), 1, 8 * x.numel(), False).view(len(x), -1)[:, :inputs]
    levels = torch.where(bits != 0, high - x_zero_point[:, None], low - x_zero_point[:, None])
    floats: Tensor = levels * x_scale[:, None]
    return floats


def _binary_linear_of(x: Tensor, *arguments: Any) -> Tensor:
    return _binary_linear(_floats_of(x, arguments), *arguments[:-1])


def check_binary_linear(x: Tensor, arguments: tuple[Any, ...]) -> None:
    """Refuse arguments of the operator that do not fit.

    Raises:
        KernelError: why.
    """
    x_scale, outputs = arguments[5], arguments[11]
    if x.ndim != 2 or x.dtype != torch.float32:
        raise KernelError("x must be float32, of rows and columns")
    if x.shape[1] == 0 or outputs <= 0:
        raise KernelError("a layer has inputs and outputs")
    if x_scale.shape not in ((1,), x.shape[:1]):
        raise KernelError("the scale of x is one, or one for each row")
    if any(part.device != x.device for part in arguments[:7]):
        raise KernelError("x, the weight and their parameters must be on one device")
    check_weight(arguments, -(-outputs // PANEL) * PANEL, -(-x.shape[1] // WORD), 1)


def _shape(x: Tensor, *arguments: Any) -> Tensor:
    return x.new_empty(x.shape[0], arguments[11], dtype=torch.float32)


_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_sums, Tensor weight_ones, Tensor bias, "
    "Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int x_levels, bool x_rounds, int outputs, "
    "bool has_masks"
)
define(
    f"binary_linear({_ARGUMENTS}) -> Tensor",
    _binary_linear,
    _shape,
    by_triton("binary", "binary_linear", _binary_linear),
)
define_fused(
    "binary_linear",
    f"{_ARGUMENTS}, int inputs",
    _binary_linear_of,
    _shape,
    lambda x, *arguments: torch.ops.subbyte.binary_linear(_floats_of(x, arguments), *arguments[:-1]),
)
