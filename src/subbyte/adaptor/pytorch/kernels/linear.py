"""Converted Linear layers on packed codes."""

from torch import Tensor

from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.kernel_module import CodesOfX, IntegerKernelModule
from subbyte.adaptor.pytorch.kernels.linear_parts import by_output, panel_bias
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import DynamicQuantizer, InputQuantizer
from subbyte.kernels.linear import linear_codes
from subbyte.kernels.linear_weight import LinearWeight


class KernelLinear(IntegerKernelModule):
    """A converted Linear that runs on packed codes."""

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        return isinstance(module.handler, LinearHandler)

    @classmethod
    def shares_scale(cls, quantizer: InputQuantizer) -> bool:
        by_row = quantizer.spec.granularity.kind == "per_token" and isinstance(quantizer, DynamicQuantizer)
        return by_row or super().shares_scale(quantizer)

    def lay_out(self) -> None:
        grid = Grid.of(self.weight.spec)
        assert grid is not None
        parts = by_output(self, grid)
        bits = self.weight.spec.dtype.bits
        laid_out = LinearWeight.of(parts.numbers, parts.scale, parts.zero_point, bits, parts.group_size, grid.table())
        PanelWeight.take(self.weight, laid_out, grid.lowest_code, is_transposed=parts.is_transposed)
        self.keep_bias(panel_bias(self))

    def on_codes(self, x: Tensor, codes: CodesOfX) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        how = (codes.scale, codes.zero_point, codes.lowest, codes.highest)
        y = linear_codes(rows, self.weight.laid_out, self.kernel_bias, *how)
        return y.view(*x.shape[:-1], y.shape[-1])
