"""The arithmetic of a quantized op: integers first.

`y = (sum (qx - zx)(qw - zw)) * (sx * sw) + b`: the inner sum exact, then one fp32 multiply and one fp32
add, not contracted. fp32 holds sums of whole numbers exactly below 2^24; above, float64 does.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from subbyte.kernels.operator import runs_native
from subbyte.kernels.rescale import rescale_

EXACT_IN_FP32 = float(1 << 24)
_AS_IS = nullcontext()
_NO_BIAS = torch.empty(0, dtype=torch.float32)


def accumulator(bound: float, *, integer: bool) -> torch.dtype:
    """The float dtype in which a sum of products is exact.

    Args:
        bound: of |sum| and of every partial sum: max|x| * sum|w|.
        integer: whether the factors are whole numbers; other sums are rounded in any case.
    """
    return torch.float64 if integer and bound >= EXACT_IN_FP32 else torch.float32


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`, without a call into PyTorch where x is of that type: one costs as much as a small sum."""
    return x if x.dtype is dtype else x.to(dtype)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Sums stay exact under torch.autocast, which would compute them in half precision."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _AS_IS


def rescale(total: Tensor, x_scale: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`total * (x_scale * scale) + bias` in fp32, each rounded by itself.

    Args:
        total: the exact sum, fp32 or float64; overwritten where it can be.
        x_scale: of the first factor of the products.
        scale: of the second; `x_scale * scale` is broadcastable against `total`.
        bias: broadcastable against `total`.
    """
    # A multiply and an add, not addcmul: that one rounds once.
    y = as_dtype(total, torch.float32)
    if runs_native(y) and x_scale.ndim == 0:
        rescale_(y, x_scale, scale, _NO_BIAS if bias is None else bias)
        return y
    scale = x_scale * scale
    y = y.mul_(scale) if scale.ndim <= y.ndim and not y.requires_grad else y * scale
    return y if bias is None else y.add_(bias)
