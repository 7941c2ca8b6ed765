"""Converted Linear layers with float inputs on packed codes."""

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.kernel_module import FloatKernelModule
from subbyte.adaptor.pytorch.kernels.linear_parts import by_output, panel_bias
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.kernels.float_linear import FloatLinearWeight, linear_float
from subbyte.kernels.gpu import used_on


class KernelFloatLinear(FloatKernelModule):
    """A converted Linear of weight-only quantization."""

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        return isinstance(module.handler, LinearHandler)

    def lay_out(self) -> None:
        spec, grid = self.weight.spec, Grid.of(self.weight.spec)
        assert grid is not None
        parts, values = by_output(self, grid), None
        scale, zero_point = parts.scale, parts.zero_point
        if spec.dtype.values is not None:  # as floats they need no rounding to whole numbers
            values, zero_point = torch.tensor(spec.dtype.values), torch.zeros_like(zero_point)
            scale = scale / grid.unit
        laid_out = FloatLinearWeight.of(parts.numbers, scale, zero_point, spec.dtype.bits, parts.group_size, values)
        PanelWeight.take(self.weight, laid_out, grid.lowest_code, is_transposed=parts.is_transposed)
        self.keep_bias(panel_bias(self))

    def on_floats(self, x: Tensor) -> Tensor:
        y = linear_float(x.reshape(-1, x.shape[-1]), self.weight.laid_out, self.kernel_bias)
        return y.view(*x.shape[:-1], y.shape[-1])

    @property
    def kernel(self) -> str:
        return f"{used_on(self.weight.device)}: floats on packed codes"
