"""binary_linear on a GPU: x becomes words of bits, which meet the weight's by xor and popcount."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from subbyte.kernels.binary_linear import check_binary_linear
from subbyte.kernels.binary_weight import WORD, Levels

# Words of 32 bits that a program compares at once, and those that one row is multiplied with at once.
_WORDS, _WORDS_OF_ONE_ROW = 16, 32
_ROWS, _OUTPUTS, _OUTPUTS_OF_ONE_ROW = 32, 64, 16


def binary_linear(x: Tensor, *arguments: Any) -> Tensor:
    """Run the operator `subbyte::binary_linear`.

    Args:
        x: fp32 [rows, inputs].
        arguments: the others, in its order.

    Returns:
        fp32 [rows, outputs].

    Raises:
        KernelError: something does not fit.
    """
    check_binary_linear(x, arguments)
    packed, *by_output, x_scale, x_zero_point, low, high, count, rounds, outputs, has_masks = arguments
    y = x.new_empty(x.shape[0], outputs)
    if y.numel() == 0:
        return y
    scale, zero_point = x_scale.expand(len(x)), x_zero_point.expand(len(x))
    levels = Levels(low, high, count, rounds)
    with torch.cuda.device_of(x):
        bits = _bits(x, scale, zero_point, levels)
        if rounds:  # a NaN has no level: it makes its row NaN, as it would in float
            scale = torch.where(x.isnan().any(1), torch.nan, scale)
        weight = (packed.contiguous().view(torch.int32), *(part.contiguous() for part in by_output))
        one = len(x) == 1
        tile = {
            "tile_rows": 1 if one else _ROWS,
            "tile_outputs": _OUTPUTS_OF_ONE_ROW if one else _OUTPUTS,
            "tile_words": _WORDS_OF_ONE_ROW if one else 1,
        }
        grid = (triton.cdiv(len(x), tile["tile_rows"]) * triton.cdiv(outputs, tile["tile_outputs"]),)
        _products[grid](
            *(bits, *weight, scale, zero_point, y),
            *(scale.stride(0), zero_point.stride(0), len(x), outputs, bits.shape[2], low, levels.step),
            **{"planes": count - 1, "has_masks": has_masks, "has_bias": bool(by_output[-1].numel()), **tile},
            enable_fp_fusion=False,  # each product and each sum is rounded by itself
        )
    return y


def _bits(x: Tensor, scale: Tensor, zero_point: Tensor, levels: Levels) -> Tensor:
    """Which levels above the lowest x passes: int32 [rows, levels - 1, words]."""
    words = 2 * -(-x.shape[1] // WORD)
    bits = torch.empty(len(x), levels.count - 1, words, dtype=torch.int32, device=x.device)
    _thresholds[(len(x), triton.cdiv(words, _WORDS))](
        *(x, scale, zero_point, bits),
        *(*x.stride(), scale.stride(0), zero_point.stride(0), x.shape[1], words, levels.low, levels.step),
        planes=levels.count - 1,
        rounds=levels.rounds,
        tile=_WORDS,
        enable_fp_fusion=False,
    )
    return bits


@triton.jit
def _thresholds(
    x,
    scale,
    zero_point,
    bits,
    x_row,
    x_column,
    scale_row,
    zero_row,
    inputs,
    words,
    low,
    gap,
    planes: tl.constexpr,
    rounds: tl.constexpr,
    tile: tl.constexpr,
):
    """Some words of one row, in every plane: a bit is 1 from the middle between two levels on."""
    m = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * tile + tl.arange(0, tile)
    column = word.to(tl.int64)[:, None] * 32 + tl.arange(0, 32)[None, :]
    value = tl.load(x + m * x_row + column * x_column, mask=column < inputs, other=0.0)
    quotient = tl.div_rn(value, tl.load(scale + m * scale_row))
    lowest = low - tl.load(zero_point + m * zero_row)
    for plane in tl.static_range(planes):
        middle = lowest.to(tl.float32) + gap * (plane + 0.5)
        passes = ~(quotient < middle) & (column < inputs)
        if rounds:  # half to even: not to an odd upper level
            passes &= (quotient != middle) | ((lowest + plane + 1) % 2 == 0)
        field = tl.sum(passes.to(tl.int32) << tl.arange(0, 32)[None, :], 1)
        tl.store(bits + (m * planes + plane) * words + word, field, mask=word < words)


@triton.jit
def _products(
    bits,
    signs,
    weight_scale,
    weight_sums,
    weight_ones,
    bias,
    scale,
    zero_point,
    y,
    scale_row,
    zero_row,
    rows,
    outputs,
    words,
    low,
    gap,
    planes: tl.constexpr,
    has_masks: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_words: tl.constexpr,
):
    """A tile of rows times a tile of outputs."""
    tiles = tl.cdiv(outputs, tile_outputs)
    m = (tl.program_id(0) // tiles).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    n = tl.program_id(0) % tiles * tile_outputs + tl.arange(0, tile_outputs)
    # A word of 64 bits is two of 32; those of 8 outputs lie side by side, after their signs their masks.
    word_size: tl.constexpr = 32 if has_masks else 16
    panel = (n // 8).to(tl.int64) * (words // 2) * word_size + n % 8 * 2
    differing = tl.zeros([tile_rows, tile_outputs, tile_words], tl.int32)
    for first in range(0, words, tile_words):
        word = first + tl.arange(0, tile_words)
        place = panel[:, None] + (word // 2 * word_size + word % 2)[None, :]
        is_weight = (n < outputs)[:, None] & (word < words)[None, :]
        is_row = (m < rows)[:, None] & (word < words)[None, :]
        sign = tl.load(signs + place, mask=is_weight, other=0)[None, :, :]
        for plane in tl.static_range(planes):
            row = tl.load(bits + (m[:, None] * planes + plane) * words + word[None, :], mask=is_row, other=0)
            differs = row[:, None, :] ^ sign
            if has_masks:
                differs &= tl.load(signs + place + 16, mask=is_weight, other=0)[None, :, :]
            differing += _popcount(differs)
    ones = tl.load(weight_ones + n, mask=n < outputs, other=0)
    sums = tl.load(weight_sums + n, mask=n < outputs, other=0)
    lowest = low - tl.load(zero_point + m * zero_row, mask=m < rows, other=0)
    total = lowest[:, None] * sums[None, :] + gap * (planes * ones[None, :] - tl.sum(differing, 2))
    x_scale = tl.load(scale + m * scale_row, mask=m < rows, other=0.0)
    w_scale = tl.load(weight_scale + n, mask=n < outputs, other=0.0)
    result = total.to(tl.float32) * (x_scale[:, None] * w_scale[None, :])
    if has_bias:
        result += tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
    tl.store(y + m[:, None] * outputs + n[None, :], result, mask=(m < rows)[:, None] & (n < outputs)[None, :])


@triton.jit
def _popcount(word):
    """Bits of int32 that are 1. Triton has no name for it; its compiler knows this pattern for the one instruction."""
    v = word.to(tl.uint32, bitcast=True)
    v = v - ((v >> 1) & 0x55555555)
    v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
    v = (v + (v >> 4)) & 0x0F0F0F0F
    return ((v * 0x01010101) >> 24).to(tl.int32)
