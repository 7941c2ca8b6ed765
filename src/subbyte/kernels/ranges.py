"""affine_params: scale and zero point of a tensor, or of each of its rows, from the smallest and the largest value.

`symmetric`: the smallest scale that clips nothing the codes can hold, max(maximum / high, minimum / low); the zero
point is 0, of codes without both signs the lowest code, mid-range where a value is negative. Else the range is widened
to hold 0: `s = (maximum - minimum) / (high - low)`, `z = clamp(round(low - minimum / s))`. A range of zeros has scale
1; what a NaN is among has scale 1 and some code as zero point.
"""

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.operator import define

_SMALLEST, _LARGEST = torch.finfo(torch.float32).smallest_normal, torch.finfo(torch.float32).max


def affine_params(x: Tensor, low: int, high: int, *, symmetric: bool, by_row: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero point of x.

    Args:
        x: fp32, any shape.
        low, high: the codes, inside 8 bits.
        symmetric: which formula.
        by_row: for each row of the last axis, in place of the whole.

    Returns:
        fp32 and int32, of no axes, or of x's shape with a last axis of 1.

    Raises:
        RuntimeError: x has another dtype or no rows, or the codes do not fit.
    """
    scale, zero_point = torch.ops.subbyte.affine_params(x, low, high, symmetric, by_row)
    return scale, zero_point


def _affine_params(x: Tensor, low: int, high: int, symmetric: bool, by_row: bool) -> tuple[Tensor, Tensor]:
    if x.dtype != torch.float32 or (by_row and x.ndim == 0):
        raise KernelError("x must be float32, with rows where they are asked for")
    if not (-128 <= low < high <= 255 and high - low <= 255):
        raise KernelError("codes take 8 bits")
    minimum, maximum = _ends(x, by_row)
    return (_symmetric if symmetric else _asymmetric)(minimum, maximum, low, high)


def _ends(x: Tensor, by_row: bool) -> tuple[Tensor, Tensor]:
    rows = x if by_row else x.reshape(-1)
    if rows.shape[-1] == 0:
        zeros = x.new_zeros((*rows.shape[:-1], 1) if by_row else ())
        return zeros, zeros
    minimum, maximum = torch.aminmax(rows, dim=-1, keepdim=by_row)
    return minimum, maximum


def _symmetric(minimum: Tensor, maximum: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    zero_point = torch.zeros_like(minimum, dtype=torch.int32)
    if not low < 0 <= high:
        zero_point = torch.where(minimum < 0, (low + high + 1) // 2, low).to(torch.int32)
    lowest, highest = (low - zero_point).float(), (high - zero_point).float()
    scale = torch.maximum(_over(maximum, highest), _over(minimum, lowest))
    absolute = torch.maximum(minimum.abs(), maximum.abs()) / torch.maximum(lowest.abs(), highest.abs())
    return _usable(torch.where(scale > 0, scale, absolute)), zero_point


def _over(end: Tensor, code: Tensor) -> Tensor:
    return torch.where(code != 0, end / torch.where(code != 0, code, 1.0), 0.0)


def _asymmetric(minimum: Tensor, maximum: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    minimum, maximum = minimum.clamp(max=0.0), maximum.clamp(min=0.0)
    scale = _usable(maximum / (high - low) - minimum / (high - low))
    zero_point = (low - minimum / scale).round().nan_to_num(low).clamp(low, high)
    return scale, zero_point.to(torch.int32)


def _usable(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0).clamp(_SMALLEST, _LARGEST)


def _shape(x: Tensor, low: int, high: int, symmetric: bool, by_row: bool) -> tuple[Tensor, Tensor]:
    scale = x.new_empty((*x.shape[:-1], 1) if by_row else ())
    return scale, torch.empty_like(scale, dtype=torch.int32)


define(
    "affine_params(Tensor x, int low, int high, bool symmetric, bool by_row) -> (Tensor, Tensor)",
    _affine_params,
    _shape,
)
