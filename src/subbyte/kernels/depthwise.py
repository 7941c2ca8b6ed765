"""depthwise_conv2d_codes: a convolution of each channel by itself, on packed weight codes, exact in integers.

The arithmetic is that of `convolution`, of groups of one input and one output.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.checks import check_codes_of_weight, check_codes_of_x, check_scale_of_weight
from subbyte.kernels.codes import X_DTYPES, codes_of_x
from subbyte.kernels.convolution import Window, check_window, memory_format, window_of
from subbyte.kernels.epilogue import Epilogue, define_fused
from subbyte.kernels.operator import define
from subbyte.kernels.packing import pack_codes, packed_size, unpack_codes
from subbyte.kernels.panels import table_of


@dataclass(frozen=True)
class DepthwiseWeight:
    """A weight tap by tap.

    Args:
        packed: uint8, one axis: codes [rows, columns, channels] as `pack_codes` gives them.
        scale: fp32 [channels].
        zero_point: int32 [channels], in the domain of the values.
        values: uint8 [16]: what a code stands for; or empty: itself.
        bits: of a code.
        kernel: rows and columns.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    values: Tensor
    bits: int
    kernel: tuple[int, int]

    @classmethod
    def of(
        cls, codes: Tensor, scale: Tensor, zero_point: Tensor, bits: int, values: Tensor | None = None
    ) -> "DepthwiseWeight":
        """Lay a weight out.

        Args:
            codes: uint8 [channels, 1, rows, columns], unsigned.
            scale: fp32 [channels].
            zero_point: int32 [channels], in the domain of the values.
            bits: of a code.
            values: uint8, what each code stands for, for codes of at most 4 bits; None: the code itself.

        Raises:
            KernelError: the shapes do not fit each other, or a code takes more bits.
        """
        channels, one, rows, columns = codes.shape
        if one != 1 or scale.shape != (channels,) or zero_point.shape != (channels,):
            raise KernelError(f"a weight of shape {tuple(codes.shape)} takes one input and a scale for each output")
        if codes.numel() and int(codes.max()) >> bits:
            raise KernelError(f"code {int(codes.max())} takes more than {bits} bits")
        packed = pack_codes(codes[:, 0].permute(1, 2, 0).contiguous(), bits)
        return cls(packed, scale.float(), zero_point.int(), table_of(values, bits), bits, (rows, columns))

    def codes(self) -> Tensor:
        """The codes: uint8 [channels, 1, rows, columns]."""
        shape = (*self.kernel, len(self.scale))
        count = shape[0] * shape[1] * shape[2]
        return unpack_codes(self.packed, self.bits, count, False).view(shape).permute(2, 0, 1)[:, None]


def depthwise_conv2d_codes(
    x: Tensor,
    weight: DepthwiseWeight,
    bias: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    x_range: tuple[int, int],
    window: Window,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """Quantize an image and convolve each channel with its weight.

    Args:
        x: fp32 [images, channels, rows, columns], or codes already, uint8 or int8; row-major or channels_last, as the
            result.
        weight: laid out.
        bias: fp32 [channels], or empty.
        x_scale, x_zero_point: fp32 and int32, [1].
        x_range: the lowest and the highest code of x.
        window: how the kernel moves.
        epilogue: what is done with the results.

    Returns:
        fp32 [images, channels, rows, columns], or what the epilogue makes of it.

    Raises:
        RuntimeError: something does not fit.
    """
    parts = (weight.packed, weight.scale, weight.zero_point, weight.values, bias, x_scale, x_zero_point)
    numbers = (*x_range, weight.bits, len(weight.scale), *window.numbers())
    y: Tensor = (
        torch.ops.subbyte.depthwise_conv2d_codes(x, *parts, *numbers)
        if epilogue is None
        else torch.ops.subbyte.depthwise_conv2d_codes_fused(x, *parts, *numbers, *epilogue.arguments(x.device))
    )
    return y


def _depthwise_conv2d_codes(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    values: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    x_low: int,
    x_high: int,
    bits: int,
    channels: int,
    *geometry: int,
) -> Tensor:
    window = window_of(geometry)
    if x.ndim != 4 or x.dtype not in X_DTYPES or channels <= 0 or x.shape[1] != channels:
        raise KernelError("x must be float32, or codes in uint8 or int8, with as many channels as the weight")
    check_window(window, tuple(x.shape[2:]))
    count = channels * window.kernel[0] * window.kernel[1]
    check_codes_of_weight(weight, values, bits, packed_size(count, bits))
    check_scale_of_weight(weight_scale)
    check_codes_of_x(x_scale, x_zero_point, x_low, x_high, 1)
    if weight_scale.shape != (channels,) or weight_zero_point.shape != (channels,):
        raise KernelError(f"the weight's scale and zero point take {channels} elements")
    if not bool(((weight_zero_point >= 0) & (weight_zero_point <= 255)).all()):
        raise KernelError("a zero point of the weight is no byte")
    if bias.numel() not in (0, channels):
        raise KernelError(f"the bias takes {channels} elements")
    codes = unpack_codes(weight, bits, count, False).view(*window.kernel, channels).permute(2, 0, 1)[:, None]
    numbers = (values[codes.int()] if values.numel() else codes).double()
    grid = codes_of_x(x, x_scale, x_zero_point, (x_low, x_high)) - x_zero_point.double()
    w_grid = numbers - weight_zero_point.double()[:, None, None, None]
    total = F.conv2d(grid, w_grid, None, window.stride, window.padding, window.dilation, channels).float()
    y = total * (x_scale * weight_scale)[:, None, None]
    y = y + bias[:, None, None] if bias.numel() else y
    return y.contiguous(memory_format=memory_format(x))


def _shape(x: Tensor, *arguments: int) -> Tensor:
    rows, columns = window_of(arguments[11:]).output(tuple(x.shape[2:]))
    return x.new_empty(x.shape[0], x.shape[1], rows, columns, dtype=torch.float32).to(memory_format=memory_format(x))


_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor values, Tensor bias, "
    "Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, int channels, "
    "int kernel_height, int kernel_width, int stride_height, int stride_width, int padding_height, int padding_width, "
    "int dilation_height, int dilation_width"
)
define(f"depthwise_conv2d_codes({_ARGUMENTS}) -> Tensor", _depthwise_conv2d_codes, _shape)
define_fused("depthwise_conv2d_codes", _ARGUMENTS, _depthwise_conv2d_codes, _shape)
