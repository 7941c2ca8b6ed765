"""Converted Conv1d and Conv2d on packed codes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.kernel_module import CodesOfX, IntegerKernelModule
from subbyte.adaptor.pytorch.kernels.panel_weight import LaidOut, PanelWeight
from subbyte.adaptor.pytorch.modules.convolution import ConvolutionHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.kernels.convolution import ConvolutionWeight, Window, bias_by_panel, conv2d_codes
from subbyte.kernels.depthwise import DepthwiseWeight, depthwise_conv2d_codes

# Of groups with fewer channels, most of a panel would be empty.
FEWEST_CHANNELS = 8


class KernelConvolution(IntegerKernelModule):
    """A converted Conv1d or Conv2d that runs on packed codes; of one dimension it is an image of one row."""

    groups: int
    kernel_window: Window

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        return is_plain(module) and cls.fills(vars(module)["groups"], module.weight.shape[0], module.weight.shape[1])

    @classmethod
    def fills(cls, groups: int, outputs: int, channels: int) -> bool:
        """Whether such groups, of `channels` inputs each, are what the kernel is for."""
        return fills_panels(groups, outputs, channels)

    def lay_out(self) -> None:
        spec, grid = self.weight.spec, Grid.of(self.weight.spec)
        assert grid is not None
        vars(self)["kernel_window"] = window_of(vars(self))
        tensor, outputs = self.weight.tensor, self.weight.shape[0]
        scale = output_scale(self, self.handler, tensor.params, spec, self.norm_factor) * grid.unit
        scale, zero_point = (x.reshape(-1).expand(outputs).contiguous() for x in (scale, grid.zero_point(tensor)))
        laid_out = self.laid_out(as_kernels_of_images(grid.numbers(tensor)), scale, zero_point, grid)
        PanelWeight.take(self.weight, laid_out, grid.lowest_code)
        bias = float_bias(self)
        self.keep_bias(torch.empty(0) if bias is None else self.bias_for_kernel(bias))

    def laid_out(self, numbers: Tensor, scale: Tensor, zero_point: Tensor, grid: Grid) -> LaidOut:
        """The weight as the kernel takes it; scale and zero point for each output."""
        by_tap, bits = self.kernel_window.dilation[1] > 1, self.weight.spec.dtype.bits
        return ConvolutionWeight.of(numbers, scale, zero_point, bits, self.groups, by_tap, grid.table())

    def bias_for_kernel(self, bias: Tensor) -> Tensor:
        """The bias as the kernel takes it."""
        return bias_by_panel(bias, self.groups)

    def on_codes(self, x: Tensor, codes: CodesOfX) -> Tensor:
        return over_images(self, x, lambda image: self.on_images(image, codes))

    def on_images(self, x: Tensor, codes: CodesOfX) -> Tensor:
        """The convolution of images (fp32), padded where both ends of an axis differ."""
        x_range = (codes.lowest, codes.highest)
        bias, window = self.kernel_bias, self.kernel_window
        return conv2d_codes(x, self.weight.laid_out, bias, codes.scale, codes.zero_point, x_range, window)


class KernelDepthwise(KernelConvolution):
    """A converted Conv1d or Conv2d of each channel by itself."""

    @classmethod
    def fills(cls, groups: int, outputs: int, channels: int) -> bool:
        return channels == 1 and outputs == groups

    def laid_out(self, numbers: Tensor, scale: Tensor, zero_point: Tensor, grid: Grid) -> LaidOut:
        return DepthwiseWeight.of(numbers, scale, zero_point, self.weight.spec.dtype.bits, grid.table())

    def bias_for_kernel(self, bias: Tensor) -> Tensor:
        return bias

    def on_images(self, x: Tensor, codes: CodesOfX) -> Tensor:
        x_range = (codes.lowest, codes.highest)
        bias, window = self.kernel_bias, self.kernel_window
        return depthwise_conv2d_codes(x, self.weight.laid_out, bias, codes.scale, codes.zero_point, x_range, window)


def is_plain(module: ConvertedWeighted) -> bool:
    """Whether it is a Conv1d or Conv2d that pads with 0 and has at most one scale for each output."""
    handler = module.handler
    if not isinstance(handler, ConvolutionHandler) or handler.dimensions > 2:
        return False
    return vars(module)["padding_mode"] == "zeros" and module.weight.spec.granularity.kind != "per_group"


def fills_panels(groups: int, outputs: int, channels: int) -> bool:
    """Whether groups, of `channels` inputs each, leave panels mostly full."""
    return groups == 1 or min(channels, outputs // groups) >= FEWEST_CHANNELS


def as_kernels_of_images(weight: Tensor) -> Tensor:
    """A weight of one or two dimensions as one of two."""
    return weight if weight.ndim == 4 else weight.unsqueeze(2)


def over_images(module: Any, x: Tensor, convolve: Callable[[Tensor], Tensor]) -> Tensor:
    """A convolution of one or two dimensions, with a batch or without, by one of images.

    Args:
        module: a Conv1d or Conv2d.
        x: its input.
        convolve: from images, padded where both ends of an axis differ, to images.
    """
    spatial = len(module.weight.shape) - 2
    padding = uneven_padding(vars(module))
    x = F.pad(x, padding) if any(padding) else x
    image = x.reshape(-1, *x.shape[-1 - spatial :])
    y = convolve(image if spatial == 2 else image.unsqueeze(2))
    y = y if spatial == 2 else y.squeeze(2)
    return y.view(*x.shape[: -1 - spatial], *y.shape[1:]) if x.ndim != y.ndim else y


def window_of(options: dict[str, Any]) -> Window:
    padding = tuple(min(pair) for pair in _padding(options))
    kinds = (options["kernel_size"], options["stride"], padding, options["dilation"])
    one_row = (1, 1, 0, 1)
    kernel, stride, padded, dilation = ((*(row,), *kind)[-2:] for row, kind in zip(one_row, kinds, strict=True))
    return Window(kernel, stride, padded, dilation)


def _padding(options: dict[str, Any]) -> list[tuple[int, int]]:
    """Before and after each axis."""
    if options["padding"] == "valid":
        return [(0, 0)] * len(options["kernel_size"])
    if options["padding"] == "same":
        totals = [d * (k - 1) for d, k in zip(options["dilation"], options["kernel_size"], strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(padding, padding) for padding in options["padding"]]


def uneven_padding(options: dict[str, Any]) -> list[int]:
    """What the second end of each axis has more than the first, as `F.pad` takes it: of `same`."""
    return [number for before, after in reversed(_padding(options)) for number in (0, after - before)]
