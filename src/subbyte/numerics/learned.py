"""Fake-quantizing with a scale and a zero point that are learned."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import ConfigError
from subbyte.kernels import quantize as kernels
from subbyte.kernels.once import differentiable_once
from subbyte.kernels.operator import is_native
from subbyte.numerics.integer_first import as_dtype
from subbyte.numerics.rectify import is_rectified, note_masked
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


@dataclass(frozen=True)
class Learned:
    """What `learned_fake_quantize` takes, of one tensor."""

    x: Tensor
    scale: Tensor
    zero_point: Tensor
    spec: TensorSpec
    factor: float = 1.0

    def value(self) -> Tensor:
        """The quantized value."""
        return learned_fake_quantize(self.x, self.scale, self.zero_point, self.spec, self.factor)

    @property
    def has_kernels(self) -> bool:
        """Whether there are kernels for it that do more than quantize."""
        x = self.x
        return x.dtype is torch.float32 and x.is_cpu and not torch.compiler.is_compiling() and is_native()

    def joins(self, other: "Learned") -> bool:
        """Whether `learned_sum` has a kernel for the two."""
        x, y = self.x, other.x
        return x.shape == y.shape and x.stride() == y.stride() and self.has_kernels and other.has_kernels

    @property
    def grid(self) -> kernels.Grid:
        return self.spec.qmin, self.spec.qmax, self.spec.granularity.group_size


def learned_sum(first: Learned, second: Learned) -> Tensor:
    """The sum of two quantized values, in one pass and with the gradients of both.

    Args:
        first, second: of fp32 and one shape; see `Learned.joins`.
    """
    parts = [(part.grid, part.factor) for part in (first, second)]
    tensors = (first.x, first.scale, first.zero_point, second.x, second.scale, second.zero_point)
    values: Tensor = _LearnedSum.apply(parts, *tensors)  # type: ignore[no-untyped-call]
    return values


@dataclass(frozen=True)
class Way:
    """How a gradient goes back."""

    grid: kernels.Grid
    factor: float
    rectified: bool
    learns_zero_point: bool

    @classmethod
    def of(cls, x: Tensor, zero_point: Tensor, grid: kernels.Grid, factor: float) -> "Way":
        return cls(grid, factor, is_rectified(x), zero_point.is_floating_point())

    def back(self, gradient: Tensor, x: Tensor, scale: Tensor, code: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, scale and zero point."""
        of_x, of_scale, of_zero = kernels.affine_fake_quantize_backward(
            gradient, x, scale, code, *self.grid, factor=self.factor, rectified=self.rectified
        )
        if self.rectified:
            note_masked(of_x, x)
        return of_x, of_scale, of_zero if self.learns_zero_point else None

    def back_over(self, gradient: Tensor, x: Tensor, scale: Tensor, code: Tensor) -> tuple[Tensor | None, ...]:
        """The same, x's written over the gradient, which nothing else may need."""
        of_scale, of_zero = kernels.affine_fake_quantize_backward_(
            gradient, x, (scale, code, self.grid), factor=self.factor, rectified=self.rectified
        )
        if self.rectified:
            note_masked(gradient, x)
        return gradient, of_scale, of_zero if self.learns_zero_point else None


class _Learned(torch.autograd.Function):
    """`kernels.learned_fake_quantize`, whose registered gradient costs ten times as much Python at every call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, grid: kernels.Grid, factor: float) -> Tensor:
        code = kernels.nearest_code(zero_point, grid[0], grid[1])
        ctx.save_for_backward(x, scale, code)
        ctx.way = Way.of(x, zero_point, grid, factor)
        return kernels.affine_fake_quantize(x, scale, code, *grid)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.way.back(gradients[0], *ctx.saved_tensors), None, None


class _LearnedSum(torch.autograd.Function):
    """Two of `_Learned`, and their sum."""

    @staticmethod
    def forward(ctx: Any, parts: list[tuple[kernels.Grid, float]], *tensors: Tensor) -> Tensor:
        (x, scale, zero, y, y_scale, y_zero), ((grid, _), (y_grid, _)) = tensors, parts
        code, y_code = kernels.nearest_code(zero, *grid[:2]), kernels.nearest_code(y_zero, *y_grid[:2])
        ctx.save_for_backward(x, scale, code, y, y_scale, y_code)
        ctx.ways = [Way.of(x, zero, *parts[0]), Way.of(y, y_zero, *parts[1])]
        return kernels.affine_fake_quantize_sum(x, scale, code, grid, (y, y_scale, y_code, y_grid))

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors, (first, second) = ctx.saved_tensors, ctx.ways
        return None, *first.back(gradients[0], *tensors[:3]), *second.back(gradients[0], *tensors[3:])
