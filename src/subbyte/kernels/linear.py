"""linear_codes: a linear layer on packed weight codes and quantized rows, exact in integers.

`y[m, n] = sum over groups g of float(t) * (x_scale * w_scale[n, g]) (+ bias[n])`, where
`t = sum over k in g of (x[m, k] - x_zero)(w[n, k] - w_zero[n, g])` is exact, groups are added in order, and every
product and sum of floats is rounded by itself.
"""

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.linear_weight import PANEL, LinearWeight, packed_bytes, unpacked
from subbyte.kernels.operator import define


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
    group_size: int,
) -> Tensor:
    _check_layer(x, weight_scale, outputs, group_size)
    _check_codes_of_weight(weight, values, bits, packed_bytes(bits, outputs, x.shape[1], group_size))
    _check_codes_of_x(x, x_scale, x_zero_point, x_low, x_high)
    zero = x_zero_point[:, None].double()
    # A NaN has no code; it stays one, and makes its row NaN.
    grid = torch.clamp(torch.round(x / x_scale[:, None]) + zero, x_low, x_high) - zero
    codes = unpacked(weight, bits, outputs, x.shape[1], group_size)
    codes = (values[codes.int()] if values.numel() else codes).double()
    zero_points = weight_zero_point.expand(weight_scale.shape)
    y = x.new_zeros(())
    for group, (piece, columns) in enumerate(zip(grid.split(group_size, 1), codes.split(group_size, 1), strict=True)):
        w_zero = zero_points[:, group].reshape(-1)[:outputs].double()
        scale = x_scale[:, None] * weight_scale[:, group].reshape(-1)[:outputs]
        term = (piece @ (columns - w_zero[:, None]).T).float() * scale
        y = term if group == 0 else y + term
    return y + bias[:outputs] if bias.numel() else y


def _check_layer(x: Tensor, weight_scale: Tensor, outputs: int, group_size: int) -> None:
    if x.ndim != 2 or x.dtype != torch.float32:
        raise KernelError("linear_codes: x must be float32, of rows and columns")
    if x.shape[1] == 0 or outputs <= 0:
        raise KernelError("linear_codes: a layer has inputs and outputs")
    if group_size <= 0 or weight_scale.shape[:2] != (-(-outputs // PANEL), -(-x.shape[1] // group_size)):
        raise KernelError("linear_codes: the weight's scale does not fit x")


def _check_codes_of_weight(weight: Tensor, values: Tensor, bits: int, size: int) -> None:
    if not 1 <= bits <= 8:
        raise KernelError(f"codes take 1..8 bits, not {bits}")
    if weight.dtype != torch.uint8 or weight.shape != (size,):
        raise KernelError(f"linear_codes: the packed weight takes {size} bytes, uint8")
    if values.numel() not in (0, 16) or values.dtype != torch.uint8 or (values.numel() and bits > 4):
        raise KernelError("linear_codes: a table of values is 16 bytes, for codes of at most 4 bits")


def _check_codes_of_x(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int) -> None:
    if scale.shape not in ((1,), x.shape[:1]) or zero_point.shape != scale.shape:
        raise KernelError("linear_codes: the scale and the zero point of x are one, or one for each row")
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise KernelError("linear_codes: the scale of x is no positive number")
    if not (-128 <= low < high <= 255 and high - low <= 255):
        raise KernelError("linear_codes: codes of x take 8 bits")
    if not bool(((zero_point >= low) & (zero_point <= high)).all()):
        raise KernelError("linear_codes: the zero point of x is no code")


def linear_codes(
    x: Tensor, weight: LinearWeight, bias: Tensor, x_scale: Tensor, x_zero_point: Tensor, x_low: int, x_high: int
) -> Tensor:
    """Quantize the rows of x and multiply them with a weight.

    Args:
        x: fp32 [rows, inputs].
        weight: laid out.
        bias: fp32 [outputs filled up to whole panels], or empty.
        x_scale, x_zero_point: fp32 and int32, [1] or [rows].
        x_low, x_high: the codes of x.

    Returns:
        fp32 [rows, outputs].

    Raises:
        RuntimeError: something does not fit.
    """
    y: Tensor = torch.ops.subbyte.linear_codes(
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
        weight.group_size,
    )
    return y


define(
    "linear_codes(Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, "
    "Tensor values, Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, "
    "int outputs, int group_size) -> Tensor",
    _linear_codes,
    lambda x, *arguments: x.new_empty(x.shape[0], arguments[-2]),
)
