"""Converted Conv1d and Conv2d with float inputs on packed codes."""

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.kernels.convolution import (
    as_kernels_of_images,
    fills_panels,
    is_plain,
    over_images,
    window_of,
)
from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.kernel_module import FloatKernelModule
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.kernels import used_isa
from subbyte.kernels.convolution import Window, bias_by_panel
from subbyte.kernels.float_convolution import FloatConvolutionWeight, conv2d_float


class KernelFloatConvolution(FloatKernelModule):
    """A converted Conv1d or Conv2d of weight-only quantization; of one dimension it is an image of one row."""

    groups: int
    kernel_window: Window

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        return is_plain(module) and fills_panels(vars(module)["groups"], *module.weight.shape[:2])

    def lay_out(self) -> None:
        spec, tensor, outputs = self.weight.spec, self.weight.tensor, self.weight.shape[0]
        grid = Grid.of(spec)
        assert grid is not None
        vars(self)["kernel_window"] = window_of(vars(self))
        scale = output_scale(self, self.handler, tensor.params, spec, self.norm_factor)
        values, zero_point = None, grid.zero_point(tensor)
        if spec.dtype.values is not None:  # as floats they need no rounding to whole numbers
            values, zero_point = torch.tensor(spec.dtype.values), torch.zeros(1)
        scale, zero_point = (x.reshape(-1).expand(outputs).contiguous() for x in (scale, zero_point))
        numbers, by_tap = as_kernels_of_images(grid.numbers(tensor)), self.kernel_window.dilation[1] > 1
        laid_out = FloatConvolutionWeight.of(numbers, scale, zero_point, spec.dtype.bits, self.groups, by_tap, values)
        PanelWeight.take(self.weight, laid_out, grid.lowest_code)
        bias = float_bias(self)
        self.keep_bias(torch.empty(0) if bias is None else bias_by_panel(bias, self.groups))

    def on_floats(self, x: Tensor) -> Tensor:
        weight, bias, window = self.weight.laid_out, self.kernel_bias, self.kernel_window
        return over_images(self, x, lambda image: conv2d_float(image, weight, bias, window))

    @property
    def kernel(self) -> str:
        return f"{used_isa()}: floats on packed codes"
