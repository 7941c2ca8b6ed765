"""Converted Linear layers on packed codes."""

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.kernel_module import CodesOfX, KernelModule
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import DynamicQuantizer, InputQuantizer
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.kernels.linear import linear_codes
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.kernels.panels import PANEL


class KernelLinear(KernelModule):
    """A converted Linear that runs on packed codes."""

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        return isinstance(module.handler, LinearHandler)

    @classmethod
    def shares_scale(cls, quantizer: InputQuantizer) -> bool:
        by_row = quantizer.spec.granularity.kind == "per_token" and isinstance(quantizer, DynamicQuantizer)
        return by_row or super().shares_scale(quantizer)

    def lay_out(self) -> None:
        tensor, spec, grid = self.weight.tensor, self.weight.spec, Grid.of(self.weight.spec)
        assert grid is not None
        is_transposed = self.handler.channel_axis == 1
        numbers = grid.numbers(tensor)
        numbers = numbers.T if is_transposed else numbers
        size = min(spec.granularity.group_size or numbers.shape[1], numbers.shape[1])
        groups = (numbers.shape[0], -(-numbers.shape[1] // size))
        scale = output_scale(self, self.handler, tensor.params, spec, self.norm_factor) * grid.unit
        scale, zero_point = (_by_output(x, groups, is_transposed) for x in (scale, grid.zero_point(tensor)))
        laid_out = LinearWeight.of(numbers, scale, zero_point, spec.dtype.bits, size, grid.table())
        PanelWeight.take(self.weight, laid_out, grid.lowest_code, is_transposed=is_transposed)
        bias = float_bias(self)
        self.keep_bias(torch.empty(0) if bias is None else torch.nn.functional.pad(bias, (0, -len(bias) % PANEL)))

    def on_codes(self, x: Tensor, codes: CodesOfX) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        how = (codes.scale, codes.zero_point, codes.lowest, codes.highest)
        y = linear_codes(rows, self.weight.laid_out, self.kernel_bias, *how)
        return y.view(*x.shape[:-1], y.shape[-1])


def _by_output(x: Tensor, groups: tuple[int, int], is_transposed: bool) -> Tensor:
    """Parameters of a weight, whatever their granularity, as [outputs, groups]."""
    if x.ndim == 2 and x.numel() == groups[0] * groups[1] and groups[1] > 1:
        return (x.T if is_transposed else x).contiguous()
    return x.reshape(-1, 1).expand(groups).contiguous()
