"""Converted Linear layers with float inputs on packed codes."""

from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.kernel_module import KernelModule
from subbyte.adaptor.pytorch.kernels.linear_parts import by_output, panel_bias
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.kernels.float_linear import FloatLinearWeight, dtypes_on, linear_float
from subbyte.kernels.gpu import used_on
from subbyte.numerics import as_dtype


class KernelFloatLinear(KernelModule):
    """A converted Linear of weight-only quantization: floats times packed codes, in fp32."""

    @classmethod
    def serves(cls, module: ConvertedWeighted) -> bool:
        fits = isinstance(module.handler, LinearHandler) and 0 not in module.weight.shape
        return fits and not list(module.input_quantizers) and Grid.of(module.weight.spec) is not None

    @classmethod
    def runs(cls, module: ConvertedWeighted, quantizer: InputQuantizer | None) -> bool:
        return quantizer is None

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

    def compute(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        wants_gradient = x.requires_grad and torch.is_grad_enabled()
        if quantizer is not None or wants_gradient or not x.is_floating_point():
            return super().compute(x, quantizer, *extra)
        if self.awaits_norm:
            awaited.expect(self.input_quantizers.run, self.op_name)
        rows = (x if x.dtype in dtypes_on(x.device) else x.float()).reshape(-1, x.shape[-1])
        y = linear_float(rows, self.weight.laid_out, self.kernel_bias)
        return as_dtype(y.view(*x.shape[:-1], y.shape[-1]), x.dtype)

    @property
    def kernel(self) -> str:
        return f"{used_on(self.weight.device)}: floats on packed codes"
