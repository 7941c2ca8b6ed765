"""linear_codes: a linear layer on packed weight codes and quantized rows, exact in integers.

`y[m, n] = sum over groups g of float(t) * (x_scale * w_scale[n, g]) (+ bias[n])`, where
`t = sum over k in g of (x[m, k] - x_zero)(w[n, k] - w_zero[n, g])` is exact, groups are added in order, and every
product and sum of floats is rounded by itself.
"""

from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.checks import check_codes_of_weight, check_codes_of_x, check_scale_of_weight
from subbyte.kernels.codes import X_DTYPES, codes_of_x
from subbyte.kernels.epilogue import Epilogue, define_fused
from subbyte.kernels.linear_weight import LinearWeight, group_sizes
from subbyte.kernels.operator import define
from subbyte.kernels.panels import PANEL, from_panels, panel_bytes


def _linear_codes(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    weight_sums: Tensor,
    values: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    x_low: int,
    x_high: int,
    bits: int,
    outputs: int,
    inputs: int,
    group_size: int,
) -> Tensor:
    _check_layer(x, weight_scale, outputs, inputs, group_size)
    sizes = group_sizes(x.shape[1], group_size)
    check_codes_of_weight(weight, values, bits, panel_bytes(bits, outputs, sizes))
    check_scale_of_weight(weight_scale)
    check_codes_of_x(x_scale, x_zero_point, x_low, x_high, len(x))
    zero = x_zero_point[:, None].double()
    grid = codes_of_x(x, x_scale[:, None], zero, (x_low, x_high)) - zero
    codes = from_panels(weight, bits, outputs, sizes)
    codes = (values[codes.int()] if values.numel() else codes).double()
    zero_points = weight_zero_point.expand(weight_scale.shape)
    y = bias.new_zeros(())
    for group, (piece, columns) in enumerate(zip(grid.split(group_size, 1), codes.split(group_size, 1), strict=True)):
        w_zero = zero_points[:, group].reshape(-1)[:outputs].double()
        scale = x_scale[:, None] * weight_scale[:, group].reshape(-1)[:outputs]
        term = (piece @ (columns - w_zero[:, None]).T).float() * scale
        y = term if group == 0 else y + term
    return y + bias[:outputs] if bias.numel() else y


def _check_layer(x: Tensor, weight_scale: Tensor, outputs: int, inputs: int, group_size: int) -> None:
    if x.ndim != 2 or x.dtype not in X_DTYPES:
        raise KernelError("x must be float32, or codes in uint8 or int8, of rows and columns")
    if x.shape[1] != inputs:
        raise KernelError("x has rows, each of as many columns as the layer has inputs")
    if inputs <= 0 or outputs <= 0:
        raise KernelError("a layer has inputs and outputs")
    if group_size <= 0 or weight_scale.shape[:2] != (-(-outputs // PANEL), -(-x.shape[1] // group_size)):
        raise KernelError("the weight's scale does not fit x")


def linear_codes(
    x: Tensor,
    weight: LinearWeight,
    bias: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    x_low: int,
    x_high: int,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """Quantize the rows of x and multiply them with a weight.

    Args:
        x: fp32 [rows, inputs]; or codes already, uint8 or int8.
        weight: laid out.
        bias: fp32 [outputs filled up to whole panels], or empty.
        x_scale, x_zero_point: fp32 and int32, [1] or [rows].
        x_low, x_high: the codes of x.
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
        weight.zero_point,
        weight.sums,
        weight.values,
        bias,
        x_scale,
        x_zero_point,
        x_low,
        x_high,
        weight.bits,
        weight.outputs,
        weight.inputs,
        weight.group_size,
    )
    y: Tensor = (
        torch.ops.subbyte.linear_codes(*arguments)
        if epilogue is None
        else torch.ops.subbyte.linear_codes_fused(*arguments, *epilogue.arguments(x.device))
    )
    return y


def _shape(x: Tensor, *arguments: Any) -> Tensor:
    return x.new_empty(x.shape[0], arguments[-3], dtype=torch.float32)


_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, Tensor values, "
    "Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, int outputs, int inputs, "
    "int group_size"
)
define(f"linear_codes({_ARGUMENTS}) -> Tensor", _linear_codes, _shape)
define_fused("linear_codes", _ARGUMENTS, _linear_codes, _shape)
