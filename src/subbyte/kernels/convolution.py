"""conv2d_codes: a convolution on packed weight codes and a quantized input, exact in integers.

`y[n, o, i, j] = float(t) * (x_scale * w_scale[o]) (+ bias[o])`, where `t = sum over channels of o's group and taps of
(x - x_zero)(w - w_zero[o])` is exact, and the product and the sum of floats are each rounded by itself. What pads x
is the code of 0.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.checks import check_codes_of_weight, check_codes_of_x, check_scale_of_weight
from subbyte.kernels.codes import X_DTYPES, codes_of_x
from subbyte.kernels.epilogue import Epilogue, define_fused
from subbyte.kernels.operator import define
from subbyte.kernels.panels import PANEL, STEP, by_panel, from_panels, one_or_by_panel, panel_bytes, table_of, to_panels


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an image; (rows, columns) each."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def output(self, size: tuple[int, ...]) -> tuple[int, int]:
        """Rows and columns of the output for an image of this size."""
        rows, columns = (
            (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for length, kernel, stride, padding, dilation in zip(size, *astuple(self), strict=True)
        )
        return rows, columns

    def numbers(self) -> list[int]:
        """As the operators take it."""
        return [*self.kernel, *self.stride, *self.padding, *self.dilation]  # `astuple` takes 8 us


@dataclass(frozen=True)
class ConvolutionWeight:
    """A weight laid out in panels, those of each group of the convolution by themselves.

    Its inputs are ordered by tap, channels innermost and filled up to whole steps. A segment is a row of the kernel, or
    one tap where the kernel's columns are dilated.

    Args:
        packed: uint8, one axis: the codes, in the order of `panels`.
        scale: fp32 [panels, 1, 16].
        zero_point: int32, the same shape, or [1] where all are equal; in the domain of the values.
        sums: int32 [panels, 1, 16]: of the values.
        values: uint8 [16]: what a code stands for; or empty: itself.
        bits: of a code.
        shape: of the weight, [outputs, channels of a group, rows, columns].
        groups: of the convolution.
        by_tap: whether segments are taps.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    sums: Tensor
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
    ) -> "ConvolutionWeight":
        """Lay a weight out.

        Args:
            codes: uint8 [outputs, channels of a group, rows, columns], unsigned.
            scale: fp32 [outputs].
            zero_point: int32 [outputs], in the domain of the values.
            bits: of a code.
            groups: of the convolution.
            by_tap: whether the kernel's columns are dilated.
            values: uint8, what each code stands for, for codes of at most 4 bits; None: the code itself.

        Raises:
            KernelError: the shapes do not fit each other, or a code takes more bits.
        """
        outputs, channels, rows, columns = shape = tuple(codes.shape)
        if scale.shape != (outputs,) or zero_point.shape != (outputs,) or outputs % groups:
            raise KernelError(f"a weight of shape {shape} takes a scale for each output, and whole groups")
        packed, table = panels_of_groups(codes, bits, groups, by_tap), table_of(values, bits)
        real = table[codes.int()] if table.numel() else codes
        sums = real.flatten(1).sum(1, dtype=torch.int32)
        parts = (
            outputs_by_panel(scale.float(), groups),
            _one_or_by_panel(zero_point, groups),
            outputs_by_panel(sums, groups),
            table,
        )
        return cls(packed, *parts, bits, (outputs, channels, rows, columns), groups, by_tap)

    def codes(self) -> Tensor:
        """The codes: uint8, of the weight's shape."""
        return codes_of(self.packed, self.bits, self.shape, self.groups, self.by_tap)


def conv2d_codes(
    x: Tensor,
    weight: ConvolutionWeight,
    bias: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    x_range: tuple[int, int],
    window: Window,
    epilogue: Epilogue | None = None,
) -> Tensor:
    """Quantize an image and convolve it with a weight.

    Args:
        x: fp32 [images, channels, rows, columns], or codes already, uint8 or int8; row-major or channels_last, as the
            result.
        weight: laid out.
        bias: as `bias_by_panel` gives it, or empty.
        x_scale, x_zero_point: fp32 and int32, [1].
        x_range: the lowest and the highest code of x.
        window: how the kernel moves.
        epilogue: what is done with the results.

    Returns:
        fp32 [images, outputs, rows, columns], or what the epilogue makes of it.

    Raises:
        RuntimeError: something does not fit.
    """
    check_laid_out_for(window, weight.shape, by_tap=weight.by_tap)
    parts = (weight.packed, weight.scale, weight.zero_point, weight.sums, weight.values, bias, x_scale, x_zero_point)
    numbers = (*x_range, weight.bits, *weight.shape[:2], *window.numbers(), weight.groups)
    y: Tensor = (
        torch.ops.subbyte.conv2d_codes(x, *parts, *numbers)
        if epilogue is None
        else torch.ops.subbyte.conv2d_codes_fused(x, *parts, *numbers, *epilogue.arguments(x.device))
    )
    return y


def check_laid_out_for(window: Window, shape: Sequence[int], *, by_tap: bool) -> None:
    """The weight has the window's kernel, and segments as its dilation wants them.

    Raises:
        KernelError: not so.
    """
    if tuple(shape[2:]) != tuple(window.kernel):
        raise KernelError(f"the weight has a kernel of {tuple(shape[2:])}, the window one of {tuple(window.kernel)}")
    if by_tap != (window.dilation[1] > 1):
        raise KernelError("a weight is laid out by tap (`by_tap=True`) where columns are dilated, and only there")


def bias_by_panel(bias: Tensor, groups: int) -> Tensor:
    """A bias (fp32 [outputs]) as the kernels take it."""
    return outputs_by_panel(bias, groups).reshape(-1)


def outputs_by_panel(x: Tensor, groups: int) -> Tensor:
    """[outputs] as [panels, 1, 16], the panels of each group by themselves."""
    return torch.cat([by_panel(of_group[:, None]) for of_group in x.chunk(groups)])


def _one_or_by_panel(zero_point: Tensor, groups: int) -> Tensor:
    one = one_or_by_panel(zero_point[:, None])
    return one if one.numel() == 1 else outputs_by_panel(zero_point.int(), groups)


def segments_of(kernel: tuple[int, int], channels: int, by_tap: bool) -> list[int]:
    """Inputs of each segment: a row of the kernel, or one tap."""
    filled = -(-channels // STEP) * STEP
    return [filled] * (kernel[0] * kernel[1]) if by_tap else [filled * kernel[1]] * kernel[0]


def panels_of_groups(codes: Tensor, bits: int, groups: int, by_tap: bool) -> Tensor:
    """Codes (uint8 [outputs, channels of a group, rows, columns]) in panels, those of each group by themselves."""
    channels, kernel = codes.shape[1], (codes.shape[2], codes.shape[3])
    by_input = F.pad(codes.permute(0, 2, 3, 1), (0, -channels % STEP)).flatten(1)
    segments = segments_of(kernel, channels, by_tap)
    return torch.cat([to_panels(of_group, bits, segments) for of_group in by_input.chunk(groups)])


def codes_of(packed: Tensor, bits: int, shape: tuple[int, int, int, int], groups: int, by_tap: bool) -> Tensor:
    """What `panels_of_groups` got."""
    outputs, channels, rows, columns = shape
    segments = segments_of((rows, columns), channels, by_tap)
    pieces = packed.view(groups, -1).unbind()
    by_input = torch.cat([from_panels(piece, bits, outputs // groups, segments) for piece in pieces])
    return by_input.view(outputs, rows, columns, -1)[..., :channels].permute(0, 3, 1, 2)


def by_output(x: Tensor, outputs: int, groups: int) -> Tensor:
    """What `outputs_by_panel` made, as [outputs]."""
    return x.reshape(groups, -1)[:, : outputs // groups].reshape(-1)


def _conv2d_codes(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    weight_sums: Tensor,
    values: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    x_low: int,
    x_high: int,
    bits: int,
    outputs: int,
    channels: int,
    *geometry: int,
) -> Tensor:
    window, groups = window_of(geometry), geometry[-1]
    if x.ndim != 4 or x.dtype not in X_DTYPES:
        raise KernelError("x must be float32, or codes in uint8 or int8, of four axes")
    check_shapes(x, (outputs, channels), groups, window)
    shape = (outputs, channels, *window.kernel)
    by_tap = window.dilation[1] > 1
    segments = segments_of(window.kernel, channels, by_tap)
    check_codes_of_weight(weight, values, bits, groups * panel_bytes(bits, outputs // groups, segments))
    check_scale_of_weight(weight_scale)
    check_codes_of_x(x_scale, x_zero_point, x_low, x_high, 1)
    parameters = groups * -(-outputs // groups // PANEL) * PANEL
    if weight_scale.numel() != parameters or weight_zero_point.numel() not in (1, parameters):
        raise KernelError(f"the weight's scale and zero point take {parameters} elements")
    if bias.numel() not in (0, parameters):
        raise KernelError(f"the bias takes {parameters} elements")
    codes = codes_of(weight, bits, shape, groups, by_tap)
    codes = (values[codes.int()] if values.numel() else codes).double()
    zero_point = by_output(
        weight_zero_point.expand(parameters) if weight_zero_point.numel() == 1 else weight_zero_point, outputs, groups
    )
    grid = codes_of_x(x, x_scale, x_zero_point, (x_low, x_high)) - x_zero_point.double()
    w_grid = codes - by_output(zero_point, outputs, groups).double()[:, None, None, None]
    total = F.conv2d(grid, w_grid, None, window.stride, window.padding, window.dilation, groups).float()
    y = total * (x_scale * by_output(weight_scale, outputs, groups))[:, None, None]
    y = y + by_output(bias, outputs, groups)[:, None, None] if bias.numel() else y
    return y.contiguous(memory_format=memory_format(x))


def memory_format(x: Tensor) -> torch.memory_format:
    """That of a result: channels_last where x is and is not row-major too."""
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def window_of(numbers: tuple[int, ...]) -> Window:
    """From the numbers that `Window.numbers` gives."""
    return Window(*((numbers[i], numbers[i + 1]) for i in range(0, 8, 2)))


def check_shapes(x: Tensor, sizes: tuple[int, int], groups: int, window: Window) -> None:
    """Images fit a weight of `sizes` outputs and channels of a group, and the window fits them.

    Raises:
        KernelError: not so.
    """
    outputs, channels = sizes
    if groups <= 0 or channels <= 0 or outputs <= 0 or outputs % groups:
        raise KernelError("each group of a convolution has inputs, and as many outputs as any other")
    if x.shape[1] != channels * groups:
        raise KernelError("x has other channels than the weight")
    check_window(window, tuple(x.shape[2:]))


def check_window(window: Window, size: tuple[int, ...]) -> None:
    """The kernel moves somewhere, over an image of this size.

    Raises:
        KernelError: not so.
    """
    if min(*window.kernel, *window.stride, *window.dilation) <= 0 or min(window.padding) < 0:
        raise KernelError("the kernel, its stride and dilation are positive, its padding is not negative")
    if min(window.output(size)) <= 0:
        raise KernelError("the kernel is larger than the padded image")


def _shape(x: Tensor, *arguments: int) -> Tensor:
    outputs, geometry = arguments[11], arguments[13:]
    rows, columns = window_of(geometry).output(tuple(x.shape[2:]))
    return x.new_empty(x.shape[0], outputs, rows, columns, dtype=torch.float32).to(memory_format=memory_format(x))


_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, "
    "Tensor values, Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, "
    "int outputs, int channels, int kernel_height, int kernel_width, int stride_height, int stride_width, "
    "int padding_height, int padding_width, int dilation_height, int dilation_width, int groups"
)
define(f"conv2d_codes({_ARGUMENTS}) -> Tensor", _conv2d_codes, _shape)
define_fused("conv2d_codes", _ARGUMENTS, _conv2d_codes, _shape)
