"""binary_linear: a linear layer on bits of the input and weights of -1, 0 and +1, by popcount.

`y[m, n] = float(t) * (x_scale[m] * w_scale[n]) (+ bias[n])`, where `t = sum over k of x[m, k] w[n, k]` is exact, x
being quantized to its levels, and every product and sum of floats is rounded by itself.
"""

from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.binary_weight import PANEL, WORD, BinaryWeight, Levels, check_weight, levels_of
from subbyte.kernels.gpu import by_triton
from subbyte.kernels.operator import define


def binary_linear(
    x: Tensor, weight: BinaryWeight, bias: Tensor, levels: Levels, x_scale: Tensor, x_zero_point: Tensor
) -> Tensor:
    """Quantize the rows of x to two or three levels and multiply them with a weight.

    Args:
        x: fp32 [rows, inputs].
        weight: laid out.
        bias: fp32 [outputs] as `weight.in_panels` gives it, or empty.
        levels: of x.
        x_scale, x_zero_point: fp32 and int32, [1] or [rows]; the zero point of levels that are not rounded to is 0.

    Returns:
        fp32 [rows, outputs].

    Raises:
        RuntimeError: something does not fit.
    """
    y: Tensor = torch.ops.subbyte.binary_linear(
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


def check_binary_linear(x: Tensor, arguments: tuple[Any, ...]) -> None:
    """Refuse arguments of the operator that do not fit.

    Raises:
        KernelError: why.
    """
    x_scale, outputs = arguments[5], arguments[11]
    if x.ndim != 2 or x.dtype != torch.float32:
        raise KernelError("binary_linear: x must be float32, of rows and columns")
    if x.shape[1] == 0 or outputs <= 0:
        raise KernelError("binary_linear: a layer has inputs and outputs")
    if x_scale.shape not in ((1,), x.shape[:1]):
        raise KernelError("binary_linear: the scale of x is one, or one for each row")
    if any(part.device != x.device for part in arguments[:7]):
        raise KernelError("binary_linear: x, the weight and their parameters must be on one device")
    check_weight("binary_linear", arguments, -(-outputs // PANEL) * PANEL, -(-x.shape[1] // WORD), 1)


define(
    "binary_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_sums, Tensor weight_ones, Tensor bias, "
    "Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int x_levels, bool x_rounds, int outputs, "
    "bool has_masks) -> Tensor",
    _binary_linear,
    lambda x, *arguments: x.new_empty(x.shape[0], arguments[11]),
    by_triton("binary", "binary_linear", _binary_linear),
)
