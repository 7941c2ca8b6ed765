"""Fake-quantizing with a scale and a zero point that are learned."""

from typing import Any

import torch
from torch import Tensor

from subbyte.errors import ConfigError
from subbyte.kernels import quantize as kernels
from subbyte.numerics.integer_first import as_dtype
from subbyte.numerics.schemes import is_built_in_affine, scheme_of
from subbyte.spec import TensorSpec


def learned_fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, spec: TensorSpec, factor: float = 1.0
) -> Tensor:
    """`(q - z) * s` with `q = clamp(round_half_even(x / s) + z, qmin, qmax)`, with gradients of x, s and z.

    With v = x / s, of each value that is not clipped dx = 1, ds = round(v) - v, dz = 0; of one that is, dx = 0,
    ds = q - z, dz = -s (LSQ, Esser et al., 2020; LSQ+, Bhalgat et al., 2020). `factor` is the
    1 / sqrt(n max(|qmin|, qmax)) by which LSQ multiplies the scale's gradient.

    Args:
        x: fp32, bf16 or fp16, any shape and memory format.
        scale: fp32, in the shape that QuantParams tells; positive.
        zero_point: one or of scale's shape; one of fp32 is rounded to the nearest code first, and learned straight
            through that; one of int32 is not learned.
        spec: an integer type of scheme `sym` or `asym`; its granularity.
        factor: of the scale's gradient.

    Returns:
        values of x's shape and dtype.

    Raises:
        ConfigError: the scheme is another one.
        RuntimeError: the parameters do not fit x, or a scale is not positive.
    """
    if not is_built_in_affine(scheme_of(spec)):
        raise ConfigError(f"a learned scale needs an integer type of scheme sym or asym, not {spec}")
    x_, grid = as_dtype(x, torch.float32), (spec.qmin, spec.qmax, spec.granularity.group_size)
    if torch.compiler.is_compiling():  # it sees the operator whole
        values = kernels.learned_fake_quantize(x_, scale, zero_point, *grid, factor)
    else:
        values = _Learned.apply(x_, scale, zero_point, grid, factor)  # type: ignore[no-untyped-call]
    return as_dtype(values, x.dtype)


class _Learned(torch.autograd.Function):
    """`kernels.learned_fake_quantize`, whose registered gradient costs ten times as much Python at every call."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, grid: tuple[int, int, int], factor: float
    ) -> Tensor:
        code = kernels.nearest_code(zero_point, grid[0], grid[1])
        ctx.save_for_backward(x, scale, code)
        ctx.grid, ctx.factor, ctx.learns_zero_point = grid, factor, zero_point.is_floating_point()
        return kernels.affine_fake_quantize(x, scale, code, *grid)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, code = ctx.saved_tensors
        of_x, of_scale, of_zero = kernels.affine_fake_quantize_backward(gradients[0], x, scale, code, *ctx.grid)
        return of_x, of_scale.mul_(ctx.factor), of_zero if ctx.learns_zero_point else None, None, None
