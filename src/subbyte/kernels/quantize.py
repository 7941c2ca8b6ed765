"""Floats onto affine grids, in one pass: as steps, as values, as codes; and the gradients of scale and zero point.

`steps = clamp(round_half_even(x / scale), low - zero_point, high - zero_point)`, low..high the codes; a NaN stays one.

All take: x, fp32, of any shape and memory format; scale, fp32, one, or of x's rank with size 1, x's size, or one for
each `group_size` indices along an axis; zero_point, int32, one or of scale's shape; low and high, inside 8 bits.
Results have x's memory format; where x has gaps, row-major. They raise a RuntimeError where something does not fit or a
scale is no positive number.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.operator import define, define_differentiable
from subbyte.kernels.packing import _pack_codes, packed_size

# By how many steps a value may lie beyond an end of its grid and be inside: more than the rounding of a quotient.
SLACK = 1e-4
_ARGUMENTS = "Tensor x, Tensor scale, Tensor zero_point, int low, int high, int group_size"
_OTHERS = (
    "Tensor other, Tensor other_scale, Tensor other_zero_point, int other_low, int other_high, int other_group_size"
)
Grid = tuple[int, int, int]  # low, high, group_size


def _affine_snap(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int) -> Tensor:
    steps, _ = _snapped(x, scale, zero_point, low, high, group_size)
    return steps


def _affine_fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int) -> Tensor:
    steps, spread_scale = _snapped(x, scale, zero_point, low, high, group_size)
    return steps * spread_scale


def _affine_fake_quantize_sum(x: Tensor, *arguments: Any) -> Tensor:
    grid, (other, *other_grid) = arguments[:5], arguments[5:]
    _check(other.shape == x.shape, "other has another shape than x")
    return _affine_fake_quantize(x, *grid).add_(_affine_fake_quantize(other, *other_grid))


def _affine_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int, signed: bool
) -> Tensor:
    _check_type(low, high, 8, signed)
    steps, _ = _snapped(x, scale, zero_point, low, high, group_size)
    _check(not bool(steps.isnan().any()), "x holds NaN, which has no code")
    return (steps + _spread(zero_point, x.shape, group_size)).to(torch.int8 if signed else torch.uint8)


def _affine_quantize_pack(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int, bits: int, signed: bool
) -> Tensor:
    _check_type(low, high, bits, signed)
    return _pack_codes(_affine_quantize(x.contiguous(), scale, zero_point, low, high, group_size, signed), bits)


def _affine_fake_quantize_backward(
    gradient: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: int,
    high: int,
    group_size: int,
    factor: float = 1.0,
    rectified: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(gradient.shape == x.shape and gradient.dtype == torch.float32, "the gradient does not fit x")
    steps, spread_scale = _snapped(x, scale, zero_point, low, high, group_size)
    spread_zero_point = _spread(zero_point, x.shape, group_size)
    inside = is_inside(x / spread_scale, low - spread_zero_point, high - spread_zero_point)
    passes = inside & (x > 0) if rectified else inside
    of_x = torch.empty_like(steps).copy_(torch.where(passes, gradient, 0.0))
    of_scale = gradient * torch.where(inside, steps - x / spread_scale, steps)
    of_zero_point = torch.where(inside, 0.0, -(gradient * spread_scale))
    return of_x, sum_to(of_scale, scale, group_size) * factor, sum_to(of_zero_point, zero_point, group_size)


def _affine_fake_quantize_backward_(gradient: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    of_x, of_scale, of_zero_point = _affine_fake_quantize_backward(gradient, *arguments)
    gradient.copy_(of_x)
    return of_scale, of_zero_point


def is_inside(steps: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Whether values, in steps of their scale, lie from low to high, ends included, give or take SLACK."""
    return (steps >= low - SLACK) & (steps <= high + SLACK)


def _snapped(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int
) -> tuple[Tensor, Tensor]:
    """Steps, and the scale in a shape that broadcasts."""
    _check(x.dtype == torch.float32, "x must be float32")
    _check_codes(low, high)
    _check(scale.dtype == torch.float32 and scale.numel() > 0, "the scale must be float32")
    _check(zero_point.dtype == torch.int32 and zero_point.numel() > 0, "the zero point must be int32")
    _check(zero_point.numel() == 1 or zero_point.shape == scale.shape, "there is one zero point, or one for each scale")
    _check(bool(((scale > 0) & scale.isfinite()).all()), "a scale is no positive number")
    scale, zero_point = (_spread(parameter, x.shape, group_size) for parameter in (scale, zero_point))
    x = x if is_dense(x) else x.contiguous()
    steps = torch.clamp(torch.round(x / scale), (low - zero_point).float(), (high - zero_point).float())
    return steps, scale


def _spread(parameter: Tensor, shape: Sequence[int], group_size: int) -> Tensor:
    """In a shape that broadcasts against `shape`."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    _check(parameter.ndim == len(shape), "the scale has other axes than the tensor")
    for axis, (count, size) in enumerate(zip(parameter.shape, shape, strict=True)):
        if count in (1, size):
            continue
        _check(group_size > 0 and count == -(-size // group_size), f"axis {axis} of {size} cannot take {count} scales")
        parameter = parameter.repeat_interleave(group_size, axis).narrow(axis, 0, size)
    return parameter


def sum_to(terms: Tensor, parameter: Tensor, group_size: int) -> Tensor:
    """The sums of the terms that share a parameter, in its shape."""
    if parameter.numel() == 1:
        return terms.sum(dtype=torch.float64).float().reshape(parameter.shape)
    for axis, (count, size) in enumerate(zip(parameter.shape, terms.shape, strict=True)):
        if count == size:
            continue
        group = size if count == 1 else group_size
        index = torch.arange(size, device=terms.device) // max(group, 1)
        sums = terms.new_zeros([*terms.shape[:axis], count, *terms.shape[axis + 1 :]], dtype=torch.float64)
        terms = sums.index_add_(axis, index, terms.double())
    return terms.float()


def is_dense(x: Tensor) -> bool:
    """Whether the values of x lie one after another in memory, in whatever order of its axes."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _check_codes(low: int, high: int) -> None:
    fits = -128 <= low < high <= 255 and high - low <= 255
    _check(fits, f"codes take 8 bits, not {low}..{high}")


def _check_type(low: int, high: int, bits: int, signed: bool) -> None:
    _check_codes(low, high)
    _check(1 <= bits <= 8, f"codes take 1..8 bits, not {bits}")
    least = -(1 << (bits - 1)) if signed else 0
    _check(least <= low and high < least + (1 << bits), f"{low}..{high} does not fit in {bits} bits")


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise KernelError(message)


def _like(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x) if is_dense(x) else x.new_empty(x.shape)


def affine_snap(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int = 0) -> Tensor:
    """Steps (fp32, whole numbers) of x; see the module."""
    steps: Tensor = _SNAP(x, scale, zero_point, low, high, group_size)
    return steps


def affine_fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int = 0
) -> Tensor:
    """Steps times scale (fp32)."""
    values: Tensor = _FAKE_QUANTIZE(x, scale, zero_point, low, high, group_size)
    return values


def affine_fake_quantize_sum(
    x: Tensor, scale: Tensor, zero_point: Tensor, grid: Grid, other: tuple[Tensor, Tensor, Tensor, Grid]
) -> Tensor:
    """`affine_fake_quantize` of x, plus that of another tensor of x's shape, in one pass."""
    values: Tensor = _SUM(x, scale, zero_point, *grid, *other[:3], *other[3])
    return values


def affine_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int, *, signed: bool
) -> Tensor:
    """Codes, int8 if signed, else uint8: steps plus zero point. A NaN, which has no code, is refused."""
    codes: Tensor = torch.ops.subbyte.affine_quantize(x, scale, zero_point, low, high, group_size, signed)
    return codes


def affine_quantize_pack(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int, *, bits: int, signed: bool
) -> Tensor:
    """The same codes, of so many bits, as a dense stream in row-major order: see `pack_codes`."""
    packed: Tensor = torch.ops.subbyte.affine_quantize_pack(x, scale, zero_point, low, high, group_size, bits, signed)
    return packed


def affine_fake_quantize_backward(
    gradient: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: int,
    high: int,
    group_size: int = 0,
    *,
    factor: float = 1.0,
    rectified: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, scale and zero point, given the one of `affine_fake_quantize` (fp32, x's shape).

    With v = x / scale and inside: v lies from low - zero_point to high - zero_point, give or take SLACK (Esser et al.,
    2020, of scale; Bhalgat et al., 2020, of zero point):

        x: gradient where inside, else 0; of what a relu gave (`rectified`) where x is above 0 too, as relu has it
        scale: factor times the sum of gradient * (steps - v where inside, else steps)
        zero_point: sum of (0 where inside, else -gradient * scale)

    Sums are taken in float64 in an order that does not depend on the number of threads. Fp32, of the shapes of x, scale
    and zero_point.
    """
    of_x, of_scale, of_zero_point = _BACKWARD(gradient, x, scale, zero_point, low, high, group_size, factor, rectified)
    return of_x, of_scale, of_zero_point


def affine_fake_quantize_backward_(
    gradient: Tensor, x: Tensor, parameters: tuple[Tensor, Tensor, Grid], *, factor: float, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The same, x's written over `gradient`, which nothing else may need; those of scale and zero point."""
    scale, zero_point, grid = parameters
    of_scale, of_zero_point = _BACKWARD_(gradient, x, scale, zero_point, *grid, factor, rectified)
    return of_scale, of_zero_point


def learned_fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int = 0, factor: float = 1.0
) -> Tensor:
    """`affine_fake_quantize` with those gradients, the scale's multiplied by `factor`.

    A zero point of fp32 is learned, and rounded to the nearest code first; one of int32 is not.
    """
    values: Tensor = _LEARNED(x, scale, zero_point, low, high, group_size, factor)
    return values


define(f"affine_snap({_ARGUMENTS}) -> Tensor", _affine_snap, _like)
define(f"affine_fake_quantize({_ARGUMENTS}) -> Tensor", _affine_fake_quantize, _like)
define(f"affine_fake_quantize_sum({_ARGUMENTS}, {_OTHERS}) -> Tensor", _affine_fake_quantize_sum, _like)
define(
    f"affine_quantize({_ARGUMENTS}, bool signed) -> Tensor",
    _affine_quantize,
    lambda x, *rest: _like(x).to(torch.int8 if rest[-1] else torch.uint8),
)
define(
    f"affine_quantize_pack({_ARGUMENTS}, int bits, bool signed) -> Tensor",
    _affine_quantize_pack,
    lambda x, *rest: x.new_empty(packed_size(x.numel(), rest[-2]), dtype=torch.uint8),
)
define(
    f"affine_fake_quantize_backward(Tensor gradient, {_ARGUMENTS}, float factor=1.0, bool rectified=False) -> "
    "(Tensor, Tensor, Tensor)",
    _affine_fake_quantize_backward,
    lambda gradient, x, scale, zero_point, *_: (
        _like(x),
        scale.new_empty(scale.shape),
        scale.new_empty(zero_point.shape),
    ),
)

define(
    f"affine_fake_quantize_backward_(Tensor(a!) gradient, {_ARGUMENTS}, float factor=1.0, bool rectified=False) -> "
    "(Tensor, Tensor)",
    _affine_fake_quantize_backward_,
    lambda gradient, x, scale, zero_point, *_: (scale.new_empty(scale.shape), scale.new_empty(zero_point.shape)),
)


def _learned_fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, size: int, factor: float
) -> Tensor:
    return affine_fake_quantize(x, scale, nearest_code(zero_point, low, high), low, high, size)


def nearest_code(zero_point: Tensor, low: int, high: int) -> Tensor:
    """A zero point as int32: one of fp32 rounded, and kept inside low..high."""
    if not zero_point.is_floating_point():
        return zero_point
    return zero_point.round().clamp(low, high).to(torch.int32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, scale, zero_point, *ctx.grid, ctx.factor = inputs
    ctx.learns_zero_point = zero_point.is_floating_point()
    ctx.save_for_backward(x, scale, zero_point)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, scale, zero_point = ctx.saved_tensors
    low, high, size = ctx.grid
    code = nearest_code(zero_point, low, high)
    found = affine_fake_quantize_backward(gradient, x, scale, code, low, high, size, factor=ctx.factor)
    of_x, of_scale, of_zero_point = found
    return of_x, of_scale, of_zero_point if ctx.learns_zero_point else None, None, None, None, None


define_differentiable(
    f"learned_fake_quantize({_ARGUMENTS}, float factor) -> Tensor",
    _learned_fake_quantize,
    _like,
    setup_context=_keep,
    backward=_gradients,
)

# Every forward calls these, most of them with few values: looking them up would take a good part of the time.
_SNAP, _FAKE_QUANTIZE = torch.ops.subbyte.affine_snap.default, torch.ops.subbyte.affine_fake_quantize.default
_SUM = torch.ops.subbyte.affine_fake_quantize_sum.default
_BACKWARD = torch.ops.subbyte.affine_fake_quantize_backward.default
_BACKWARD_ = torch.ops.subbyte.affine_fake_quantize_backward_.default
_LEARNED = torch.ops.subbyte.learned_fake_quantize.default
