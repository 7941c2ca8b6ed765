"""linear_float on a GPU: codes become floats in registers, from the panels that the CPU's kernels read."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from subbyte.kernels.float_linear import GPU_DTYPES, FloatLinearWeight, check_float_linear
from subbyte.kernels.linear_weight import group_sizes
from subbyte.kernels.panels import BLOCK, PANEL

# What a program of the one-row kernel reads at once of one panel: whole lines of memory.
_BLOCKS_OF_ONE_ROW = 8
_BLOCKS, _OUTPUTS, _MOST_ROWS = 2, 64, 64
_LEAST_ROWS = 16  # that tl.dot takes


def linear_float(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    values: Tensor,
    bias: Tensor,
    bits: int,
    outputs: int,
    inputs: int,
    group_size: int,
) -> Tensor:
    """Run the operator `subbyte::linear_float`.

    A weight is rounded to the dtype of x before it is multiplied; sums are fp32.

    Args:
        x: fp32, bf16 or fp16 [rows, inputs].
        weight: uint8, one axis: the codes in panels.
        weight_scale, weight_zero_point, values, bias, bits, outputs, inputs, group_size: as in `FloatLinearWeight`.

    Returns:
        [rows, outputs], of the dtype of x.

    Raises:
        KernelError: something does not fit.
    """
    floats = (weight_scale, weight_zero_point, values, bias)
    laid_out = FloatLinearWeight(weight, *floats[:3], bits, outputs, inputs, group_size)
    check_float_linear(x, laid_out, bias, GPU_DTYPES)
    y = x.new_empty(x.shape[0], outputs)
    if y.numel() == 0:
        return y
    sizes = group_sizes(inputs, group_size)
    group_blocks, blocks = -(-sizes[0] // BLOCK), sum(-(-size // BLOCK) for size in sizes)
    tensors = (x, weight.contiguous().view(torch.int32), *(part.contiguous() for part in floats), y)
    numbers = (outputs, inputs, group_size, group_blocks, blocks, len(sizes))
    kinds = {"bits": bits, "has_zeros": bool(weight_zero_point.numel()), "has_bias": bool(bias.numel())}
    with torch.cuda.device_of(x):
        if len(x) == 1:
            grid: Any = (triton.cdiv(outputs, PANEL),)
            one = {"step": _BLOCKS_OF_ONE_ROW}
            _one_row[grid](*tensors, x.stride(1), *numbers, **kinds, **one, enable_fp_fusion=True)
        else:
            tile = min(_MOST_ROWS, max(_LEAST_ROWS, triton.next_power_of_2(len(x))))
            grid = (triton.cdiv(len(x), tile) * triton.cdiv(outputs, _OUTPUTS),)
            many = {"step": _BLOCKS, "tile_rows": tile, "tile_outputs": _OUTPUTS}
            _many_rows[grid](*tensors, *x.stride(), len(x), *numbers, **kinds, **many, enable_fp_fusion=True)
    return y


@triton.jit
def _one_row(
    x,
    words,
    scale,
    zero_point,
    values,
    bias,
    y,
    x_column,
    outputs,
    inputs,
    group_size,
    group_blocks,
    blocks,
    groups,
    bits: tl.constexpr,
    has_zeros: tl.constexpr,
    has_bias: tl.constexpr,
    step: tl.constexpr,
):
    """One panel of outputs; each thread sums what it reads, and all are added at the end."""
    n = tl.program_id(0) * 16 + tl.arange(0, 16)
    sums = tl.zeros([step * 32, 16], tl.float32)
    for first in range(0, blocks, step):
        column, is_real = _columns(first, inputs, group_size, group_blocks, step)
        row = tl.load(x + column * x_column, mask=is_real, other=0.0)
        codes = _codes(words, n, first, outputs, blocks, bits, step, 16)
        w = _weights(
            codes, scale, zero_point, values, n, first, outputs, group_blocks, groups, bits, has_zeros, step, 16
        )
        sums += row.to(tl.float32)[:, None] * w.to(row.dtype).to(tl.float32)
    total = tl.sum(sums, 0)
    if has_bias:
        total += tl.load(bias + n)
    tl.store(y + n, total, mask=n < outputs)


@triton.jit
def _many_rows(
    x,
    words,
    scale,
    zero_point,
    values,
    bias,
    y,
    x_row,
    x_column,
    rows,
    outputs,
    inputs,
    group_size,
    group_blocks,
    blocks,
    groups,
    bits: tl.constexpr,
    has_zeros: tl.constexpr,
    has_bias: tl.constexpr,
    step: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_outputs: tl.constexpr,
):
    """A tile of rows times a tile of outputs."""
    tiles = tl.cdiv(outputs, tile_outputs)
    m = (tl.program_id(0) // tiles).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    n = tl.program_id(0) % tiles * tile_outputs + tl.arange(0, tile_outputs)
    sums = tl.zeros([tile_rows, tile_outputs], tl.float32)
    for first in range(0, blocks, step):
        column, is_real = _columns(first, inputs, group_size, group_blocks, step)
        place = m[:, None] * x_row + column[None, :] * x_column
        piece = tl.load(x + place, mask=(m < rows)[:, None] & is_real[None, :], other=0.0)
        codes = _codes(words, n, first, outputs, blocks, bits, step, tile_outputs)
        w = _weights(
            codes,
            scale,
            zero_point,
            values,
            n,
            first,
            outputs,
            group_blocks,
            groups,
            bits,
            has_zeros,
            step,
            tile_outputs,
        )
        # "ieee": fp32 stays fp32; the other dtypes know no other way.
        sums = tl.dot(piece, w.to(piece.dtype), sums, input_precision="ieee")
    if has_bias:
        sums += tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
    is_real = (m < rows)[:, None] & (n < outputs)[None, :]
    tl.store(y + m[:, None] * outputs + n[None, :], sums, mask=is_real)


@triton.jit
def _columns(first, inputs, group_size, group_blocks, step: tl.constexpr):
    """Which inputs some blocks hold, and which of them are real: [32 * step]; filling has none."""
    k = tl.arange(0, step * 32)
    block = first + k // 32
    in_group = block % group_blocks * 32 + k % 32
    column = (block // group_blocks).to(tl.int64) * group_size + in_group
    return column, (in_group < group_size) & (column < inputs)


@triton.jit
def _codes(words, n, first, outputs, blocks, bits: tl.constexpr, step: tl.constexpr, tile: tl.constexpr):
    """The codes of some blocks of outputs n: int32 [32 * step, tile]."""
    codes = tl.zeros([step * 32, tile], tl.int32)
    for width in tl.static_range(1, 9):
        if width & -width == width and bits & width:  # widths are powers of 2
            codes |= _part(words, n, first, outputs, blocks, bits, step, tile, width, bits & (-2 * width))
    return codes


@triton.jit
def _part(
    words,
    n,
    first,
    outputs,
    blocks,
    bits: tl.constexpr,
    step: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    below: tl.constexpr,
):
    """`width` bits of the codes, above `below` bits, whose words come before.

    Four neighbouring inputs of an output are one int32 of a word, a byte each; the steps of a word lie one above the
    other in the bits of each byte.
    """
    row = tl.arange(0, step * width)
    block = first + row // width
    place = (block * bits + below + row % width) * 16
    panel = (n // 16).to(tl.int64) * blocks * bits * 16 + n % 16
    is_real = (block < blocks)[:, None] & (n < outputs)[None, :]
    word = tl.load(words + panel[None, :] + place[:, None], mask=is_real, other=0)
    inside = tl.arange(0, 32 // width)
    shift = inside // 4 * width + inside % 4 * 8
    field = (word[:, None, :] >> shift[None, :, None]) & ((1 << width) - 1)
    return tl.reshape(field, [step * 32, tile]) << below


@triton.jit
def _weights(
    codes,
    scale,
    zero_point,
    values,
    n,
    first,
    outputs,
    group_blocks,
    groups,
    bits: tl.constexpr,
    has_zeros: tl.constexpr,
    step: tl.constexpr,
    tile: tl.constexpr,
):
    """What the codes of some blocks stand for: fp32 [32 * step, tile]."""
    w = tl.load(values + codes) if bits <= 4 else codes.to(tl.float32)
    w = tl.reshape(w, [step, 32, tile])
    group = (first + tl.arange(0, step)) // group_blocks
    place = ((n // 16).to(tl.int64)[None, :] * groups + group[:, None]) * 16 + n[None, :] % 16
    is_real = (group < groups)[:, None] & (n < outputs)[None, :]
    if has_zeros:
        w -= tl.load(zero_point + place, mask=is_real, other=0.0)[:, None, :]
    w *= tl.load(scale + place, mask=is_real, other=0.0)[:, None, :]
    return tl.reshape(w, [step * 32, tile])
