"""binary_conv2d: a convolution of bits of the input with weights of -1, 0 and +1, by popcount.

`y = float(t) * (x_scale * w_scale[n]) (+ bias[n])`, where `t`, the sum over channels and kernel taps of x times w, is
exact, x being quantized to its levels and padded with 0, and every product and sum of floats is rounded by itself.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.binary_weight import PANEL, WORD, BinaryWeight, Levels, check_weight, levels_of, taps_of_word
from subbyte.kernels.convolution import Window
from subbyte.kernels.epilogue import Epilogue, define_fused
from subbyte.kernels.operator import define


def binary_conv2d(
    x: Tensor,
    weight: BinaryWeight,
    bias: Tensor,
    levels: Levels,
    x_scale: Tensor,
    x_zero_point: Tensor,
    window: Window,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """Quantize images to two or three levels and convolve them with a weight.

    Args:
        x: fp32 [images, channels, rows, columns], contiguous, in channels_last or otherwise.
        weight: laid out, with its kernel and groups.
        bias: fp32 [outputs] as `weight.in_panels` gives it, or empty.
        levels: of x.
        x_scale, x_zero_point: fp32 and int32, [1]; the zero point of levels that are not rounded to is 0.
        window: how the kernel moves.
        epilogue: what is done with the results.

    Returns:
        fp32 [images, outputs, rows, columns], in channels_last where x is; or what the epilogue makes of it.

    Raises:
        RuntimeError: something does not fit.
    """
    how = _arguments(weight, bias, levels, x_scale, x_zero_point, window)
    y: Tensor = (
        torch.ops.subbyte.binary_conv2d(x, *how)
        if epilogue is None
        else torch.ops.subbyte.binary_conv2d_fused(x, *how, *epilogue.arguments(x.device))
    )
    return y


def binary_conv2d_packed(
    x: Tensor,
    weight: BinaryWeight,
    bias: Tensor,
    levels: Levels,
    x_scale: Tensor,
    x_zero_point: Tensor,
    window: Window,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """Convolve images of bits that are packed already.

    Args:
        x: uint8 [images, rows, columns, bytes]; a pixel's channels begin with the lowest bit of its first byte, and
            what fills its last byte is ignored. A bit of 0 is the lower of two levels, 1 the upper.
        weight, bias, levels, x_scale, x_zero_point, window, epilogue: as for `binary_conv2d`; an epilogue that gives
            signs gives what the next layer takes as x.

    Returns:
        fp32 [images, outputs, rows, columns], in channels_last; or what the epilogue makes of it.

    Raises:
        RuntimeError: something does not fit.
    """
    channels = weight.channels * weight.groups
    how = (*_arguments(weight, bias, levels, x_scale, x_zero_point, window), channels)
    y: Tensor = (
        torch.ops.subbyte.binary_conv2d_packed(x, *how)
        if epilogue is None
        else torch.ops.subbyte.binary_conv2d_packed_fused(x, *how, *epilogue.arguments(x.device))
    )
    return y


def _arguments(
    weight: BinaryWeight, bias: Tensor, levels: Levels, x_scale: Tensor, x_zero_point: Tensor, window: Window
) -> tuple[Any, ...]:
    if window.kernel != weight.kernel:
        raise KernelError(f"a kernel of {weight.kernel} does not move as one of {window.kernel}")
    return (
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
        *window.numbers(),
        weight.groups,
    )


def _binary_conv2d(x: Tensor, *arguments: Any) -> Tensor:
    if x.ndim != 4 or x.dtype != torch.float32:
        raise KernelError("x must be float32, of images, channels, rows and columns")
    x_scale, x_zero_point, low, high, count, rounds = arguments[5:11]
    _check(x.shape[1], x.shape[2:], arguments)
    grid = levels_of(x, Levels(low, high, count, rounds), x_scale, x_zero_point)
    return _convolved(grid, arguments).contiguous(memory_format=_format(x))


def _binary_conv2d_packed(x: Tensor, *arguments: Any) -> Tensor:
    if x.ndim != 4 or x.dtype != torch.uint8:
        raise KernelError("x must be uint8, of images, rows, columns and bytes")
    zero_point, low, high, count, channels = *arguments[6:10], arguments[22]
    _check(channels, x.shape[1:3], arguments)
    if count != 2 or x.shape[3] != -(-channels // 8):
        raise KernelError("a bit has two levels, and a pixel the bytes that hold its channels")
    shifts = torch.arange(8, dtype=torch.uint8, device=x.device)
    bits = (x[..., None] >> shifts & 1).flatten(3)[..., :channels].permute(0, 3, 1, 2)
    grid = (low - zero_point + (high - low) * bits.int()).float()
    return _convolved(grid, arguments).contiguous(memory_format=torch.channels_last)


def _convolved(grid: Tensor, arguments: tuple[Any, ...]) -> Tensor:
    """What the values that x is quantized to give."""
    packed, scale, sums, ones, bias, x_scale = arguments[:6]
    outputs, has_masks, window, groups = *arguments[11:13], _window(arguments), arguments[21]
    channels = grid.shape[1] // groups
    weight = BinaryWeight(packed, scale, sums, ones, has_masks, outputs, channels, window.kernel, groups)
    moves = (window.stride, window.padding, window.dilation)
    total = F.conv2d(grid.double(), weight.values().double(), None, *moves, groups)
    y: Tensor = total.float() * (x_scale * weight.out_of_panels(scale))[:, None, None]
    return y + weight.out_of_panels(bias)[:, None, None] if bias.numel() else y


def _window(arguments: tuple[Any, ...]) -> Window:
    return Window(*((arguments[i], arguments[i + 1]) for i in range(13, 21, 2)))


def _check(channels: int, spatial: torch.Size, arguments: tuple[Any, ...]) -> None:
    outputs, window, groups = arguments[11], _window(arguments), arguments[21]
    if channels <= 0 or 0 in spatial or outputs <= 0:
        raise KernelError("a convolution has channels, outputs and an image")
    positive = (*window.kernel, *window.stride, *window.dilation)
    if min(positive) < 1 or min(window.padding) < 0 or max(*positive, *window.padding) >= 1 << 20:
        raise KernelError("kernel, stride and dilation are positive, padding not negative")
    if min(window.output(spatial)) <= 0:
        raise KernelError("the kernel is larger than the padded image")
    if groups < 1 or channels % groups or outputs % groups:
        raise KernelError("groups divide channels and outputs")
    if arguments[5].numel() != 1:
        raise KernelError("the scale of x is one")
    padded = groups * -(-(outputs // groups) // PANEL) * PANEL
    rows, columns = window.kernel
    taps = taps_of_word(channels // groups, columns)
    words = rows * -(-columns // taps) * -(-taps * (channels // groups) // WORD)
    check_weight(arguments, padded, words, rows * columns)


def _format(x: Tensor) -> torch.memory_format:
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def _shape(x: Tensor, *arguments: Any) -> Tensor:
    sizes = (x.shape[0], arguments[11], *_window(arguments).output(x.shape[2:]))
    return torch.empty(sizes, dtype=x.dtype, device=x.device, memory_format=_format(x))


def _shape_of_packed(x: Tensor, *arguments: Any) -> Tensor:
    sizes = (x.shape[0], arguments[11], *_window(arguments).output(x.shape[1:3]))
    return torch.empty(sizes, dtype=torch.float32, device=x.device, memory_format=torch.channels_last)


_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_sums, Tensor weight_ones, Tensor bias, "
    "Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int x_levels, bool x_rounds, int outputs, "
    "bool has_masks, int kernel_h, int kernel_w, int stride_h, int stride_w, int padding_h, int padding_w, "
    "int dilation_h, int dilation_w, int groups"
)
for _name, _arguments_of_op, _implementation, _shape_of_op in (
    ("binary_conv2d", _ARGUMENTS, _binary_conv2d, _shape),
    ("binary_conv2d_packed", f"{_ARGUMENTS}, int channels", _binary_conv2d_packed, _shape_of_packed),
):
    define(f"{_name}({_arguments_of_op}) -> Tensor", _implementation, _shape_of_op)
    define_fused(_name, _arguments_of_op, _implementation, _shape_of_op)
