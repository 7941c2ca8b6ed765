"""Converted Conv1d and Conv2d on packed codes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.kernel_module import CodesOfX, IntegerKernelModule
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.modules.convolution import ConvolutionHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.kernels.convolution import ConvolutionWeight, Window, bias_by_panel, conv2d_codes

# Of groups with fewer channels, most of a panel would be empty.
FEWEST_CHANNELS = 8


class KernelConvolution(IntegerKernelModule):
    """A converted Conv1d or Conv2d that runs on packed codes; of one dimension it is an image of one row."""

    groups: int
    kernel_window: Window

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        handler, options = module.handler, vars(module)
        if not isinstance(handler, ConvolutionHandler) or handler.dimensions > 2:
            return False
        outputs, channels = module.weight.shape[:2]
        dense = options["groups"] == 1 or min(channels, outputs // options["groups"]) >= FEWEST_CHANNELS
        return dense and options["padding_mode"] == "zeros" and module.weight.spec.granularity.kind != "per_group"

    def lay_out(self) -> None:
        tensor, spec, grid = self.weight.tensor, self.weight.spec, Grid.of(self.weight.spec)
        assert grid is not None
        vars(self)["kernel_window"] = window = window_of(vars(self))
        outputs = self.weight.shape[0]
        scale = output_scale(self, self.handler, tensor.params, spec, self.norm_factor) * grid.unit
        scale, zero_point = (x.reshape(-1).expand(outputs).contiguous() for x in (scale, grid.zero_point(tensor)))
        numbers = grid.numbers(tensor)
        numbers = numbers if numbers.ndim == 4 else numbers.unsqueeze(2)
        by_tap = window.dilation[1] > 1
        laid_out = ConvolutionWeight.of(numbers, scale, zero_point, spec.dtype.bits, self.groups, by_tap, grid.table())
        PanelWeight.take(self.weight, laid_out, grid.lowest_code)
        bias = float_bias(self)
        self.keep_bias(torch.empty(0) if bias is None else bias_by_panel(bias, self.groups))

    def on_codes(self, x: Tensor, codes: CodesOfX) -> Tensor:
        spatial = len(self.weight.shape) - 2
        padding = uneven_padding(vars(self))
        x = F.pad(x, padding) if any(padding) else x
        image = x.reshape(-1, *x.shape[-1 - spatial :])
        image = image if spatial == 2 else image.unsqueeze(2)
        y = self.on_images(image, codes)
        y = y if spatial == 2 else y.squeeze(2)
        return y.view(*x.shape[: -1 - spatial], *y.shape[1:]) if x.ndim != y.ndim else y

    def on_images(self, x: Tensor, codes: CodesOfX) -> Tensor:
        """The convolution of images (fp32), padded where both ends of an axis differ."""
        x_range = (codes.lowest, codes.highest)
        bias, window = self.kernel_bias, self.kernel_window
        return conv2d_codes(x, self.weight.laid_out, bias, codes.scale, codes.zero_point, x_range, window)


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
