"""conv2d_float: a convolution on packed weight codes and float inputs.

`y[n, o, i, j] = scale[o] * t (+ bias[o])`, where `t = sum over channels of o's group and taps of x * (values[code] -
zero_point[o])`. The arithmetic, its bound and what x in bf16 changes are those of `float_linear`: one group of `K`
inputs, in the order of the kernel's rows, its columns, and channels. What pads x is 0.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.checks import check_packed, check_scale_of_weight
from subbyte.kernels.convolution import (
    Window,
    by_output,
    check_laid_out_for,
    check_shapes,
    codes_of,
    memory_format,
    outputs_by_panel,
    panels_of_groups,
    segments_of,
    window_of,
)
from subbyte.kernels.epilogue import Epilogue, define_fused
from subbyte.kernels.float_linear import LARGEST_TABLE_BITS, dtypes_on, float_table
from subbyte.kernels.operator import define
from subbyte.kernels.panels import PANEL, panel_bytes


@dataclass(frozen=True)
class FloatConvolutionWeight:
    """A weight laid out in panels, as a `ConvolutionWeight` is.

    Args:
        packed: uint8, one axis: the codes, in the order of `panels`.
        scale: fp32 [panels, 1, 16].
        zero_point: fp32, the same shape, what is taken from the values; or empty: nothing.
        values: fp32 [16] for codes of at most 4 bits, entry i that of code i % 2^bits; for wider codes, which stand for
            themselves, empty.
        bits: of a code.
        shape: of the weight, [outputs, channels of a group, rows, columns].
        groups: of the convolution.
        by_tap: whether segments are taps.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    values: Tensor
    bits: int
    shape: tuple[int, int, int, int]
    groups: int
    by_tap: bool

    @classmethod
    def of(
        cls,
        codes: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        bits: int,
        groups: int = 1,
        by_tap: bool = False,
        values: Tensor | None = None,
    ) -> "FloatConvolutionWeight":
        """Lay a weight out.

        Args:
            codes: uint8 [outputs, channels of a group, rows, columns], unsigned.
            scale: fp32 [outputs].
            zero_point: [outputs], in the domain of the values.
            bits: of a code.
            groups: of the convolution.
            by_tap: whether the kernel's columns are dilated.
            values: fp32, what each code stands for, for codes of at most 4 bits; None: the code itself.

        Raises:
            KernelError: the shapes do not fit each other, or a code takes more bits.
        """
        outputs, channels, rows, columns = shape = tuple(codes.shape)
        if scale.shape != (outputs,) or zero_point.shape != (outputs,) or outputs % groups:
            raise KernelError(f"a weight of shape {shape} takes a scale for each output, and whole groups")
        table, has_zeros = float_table(values, zero_point, bits)
        nothing = torch.empty(0, device=codes.device)
        zeros = outputs_by_panel(zero_point.float(), groups) if has_zeros else nothing
        packed = panels_of_groups(codes, bits, groups, by_tap)
        by_panel = outputs_by_panel(scale.float(), groups)
        return cls(packed, by_panel, zeros, table, bits, (outputs, channels, rows, columns), groups, by_tap)

    def codes(self) -> Tensor:
        """The codes: uint8, of the weight's shape."""
        return codes_of(self.packed, self.bits, self.shape, self.groups, self.by_tap)


def conv2d_float(
    x: Tensor, weight: FloatConvolutionWeight, bias: Tensor, window: Window, epilogue: Epilogue | None = None
) -> Tensor:
    """Convolve images of floats with a weight.

    Args:
        x: fp32 or bf16 [images, channels, rows, columns]; row-major or channels_last, as the result.
        weight: laid out.
        bias: as `bias_by_panel` gives it, or empty.
        window: how the kernel moves.
        epilogue: what is done with the results, which are then fp32 (of x in bf16, rounded to it before).

    Returns:
        [images, outputs, rows, columns], of the dtype of x, or what the epilogue makes of it.

    Raises:
        RuntimeError: something does not fit.
    """
    parts = (weight.packed, weight.scale, weight.zero_point, weight.values, bias)
    check_laid_out_for(window, weight.shape, by_tap=weight.by_tap)
    numbers = (weight.bits, *weight.shape[:2], *window.numbers(), weight.groups)
    y: Tensor = (
        torch.ops.subbyte.conv2d_float(x, *parts, *numbers)
        if epilogue is None
        else torch.ops.subbyte.conv2d_float_fused(x, *parts, *numbers, *epilogue.arguments(x.device))
    )
    return y


def _conv2d_float(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    values: Tensor,
    bias: Tensor,
    bits: int,
    outputs: int,
    channels: int,
    *geometry: int,
) -> Tensor:
    window, groups = window_of(geometry), geometry[-1]
    if x.ndim != 4 or x.dtype not in dtypes_on(x.device):
        raise KernelError("x must be float32 or bfloat16, of images, channels, rows and columns")
    check_shapes(x, (outputs, channels), groups, window)
    by_tap = window.dilation[1] > 1
    segments = segments_of(window.kernel, channels, by_tap)
    check_packed(weight, bits, groups * panel_bytes(bits, outputs // groups, segments))
    floats = (weight_scale, weight_zero_point, values, bias)
    if any(part.dtype != torch.float32 for part in floats):
        raise KernelError("scale, zero point, values and bias must be float32")
    parameters = groups * -(-outputs // groups // PANEL) * PANEL
    if weight_scale.numel() != parameters or any(len(x.reshape(-1)) not in (0, parameters) for x in floats[1::2]):
        raise KernelError(f"the weight's scale, zero point and bias take {parameters} elements")
    if values.numel() != (16 if bits <= LARGEST_TABLE_BITS else 0):
        raise KernelError("the table of values does not fit")
    check_scale_of_weight(weight_scale)
    codes = codes_of(weight, bits, (outputs, channels, *window.kernel), groups, by_tap)
    numbers = values[codes.int()] if values.numel() else codes.float()
    scale, zero_point, real_bias = (
        by_output(part, outputs, groups) if part.numel() else None for part in (weight_scale, weight_zero_point, bias)
    )
    assert scale is not None
    numbers = numbers if zero_point is None else numbers - zero_point[:, None, None, None]
    real = (numbers * scale[:, None, None, None]).double()
    # In float64, which oneDNN does not take: on some channels_last images one pixel wide, torch 2.13's crashes.
    real_bias = None if real_bias is None else real_bias.double()
    y = F.conv2d(x.double(), real, real_bias, window.stride, window.padding, window.dilation, groups)
    return y.float().to(x.dtype).contiguous(memory_format=memory_format(x))


def _shape(x: Tensor, *arguments: int) -> Tensor:
    outputs, geometry = arguments[6], arguments[8:]
    rows, columns = window_of(geometry).output(tuple(x.shape[2:]))
    return x.new_empty(x.shape[0], outputs, rows, columns).to(memory_format=memory_format(x))


_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor values, Tensor bias, int bits, "
    "int outputs, int channels, int kernel_height, int kernel_width, int stride_height, int stride_width, "
    "int padding_height, int padding_width, int dilation_height, int dilation_width, int groups"
)
define(f"conv2d_float({_ARGUMENTS}) -> Tensor", _conv2d_float, _shape)
define_fused("conv2d_float", _ARGUMENTS, lambda *arguments: _conv2d_float(*arguments).float(), _shape)
