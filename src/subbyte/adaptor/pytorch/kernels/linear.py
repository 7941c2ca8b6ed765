"""Converted Linear layers on packed codes."""

from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.inputs import is_active
from subbyte.adaptor.pytorch.kernels.kernel_module import KernelModule
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import DynamicQuantizer, InputQuantizer
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.kernels.linear import linear_codes
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.kernels.panels import PANEL
from subbyte.numerics import Affine, as_dtype, scheme_of
from subbyte.spec import TensorSpec

EXACT_IN_INT32 = float(1 << 31)


class KernelLinear(KernelModule):
    """A converted Linear that runs on packed codes."""

    weight: PanelWeight
    kernel_bias: Tensor

    @classmethod
    def serves(cls, module: ConvertedWeighted) -> bool:
        if not isinstance(module.handler, LinearHandler) or 0 in module.weight.shape:
            return False
        return _is_affine(module.weight.spec) and any(cls.runs(module, each) for each in module.input_quantizers)

    @classmethod
    def runs(cls, module: ConvertedWeighted, quantizer: InputQuantizer | None) -> bool:
        if quantizer is None:
            return False
        kind = quantizer.spec.granularity.kind
        fits = kind == "per_tensor" or (kind == "per_token" and isinstance(quantizer, DynamicQuantizer))
        exact = quantizer.max_grid * module.weight.magnitude < EXACT_IN_INT32
        return fits and exact and _is_affine(quantizer.spec)

    def lay_out(self) -> None:
        """Bring the weight into the order that the kernels read."""
        weight, spec = self.weight, self.weight.spec
        is_transposed = self.handler.channel_axis == 1
        codes = (weight.tensor.codes.to(torch.int16) - spec.dtype.qmin).to(torch.uint8)
        codes = codes.T if is_transposed else codes
        size = min(spec.granularity.group_size or codes.shape[1], codes.shape[1])
        groups = (codes.shape[0], -(-codes.shape[1] // size))
        params = weight.tensor.params
        zero_point = torch.zeros((), dtype=torch.int32) if params.zero_point is None else params.zero_point
        scale = output_scale(self, self.handler, params, spec, self.norm_factor)
        scale, zero_point = (_by_output(x, groups, is_transposed) for x in (scale, zero_point - spec.dtype.qmin))
        laid_out = LinearWeight.of(codes, scale, zero_point, spec.dtype.bits, size)
        PanelWeight.take(weight, laid_out, is_transposed=is_transposed)
        bias = float_bias(self)
        filled = codes.new_empty(0, dtype=torch.float32)
        if bias is not None:
            filled = nn.functional.pad(bias, (0, -bias.shape[0] % PANEL))
        nn.Module.register_buffer(self, "kernel_bias", filled, persistent=False)  # type: ignore[arg-type]

    def compute(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        if quantizer is None or not self.runs(self, quantizer) or not is_active(quantizer, x):
            return super().compute(x, quantizer, *extra)
        if self.awaits_norm:
            awaited.expect(self.input_quantizers.run, self.op_name)
        rows = x.float().reshape(-1, x.shape[-1])
        params = quantizer.params_for(x.float()) if isinstance(quantizer, DynamicQuantizer) else quantizer.params
        assert params.zero_point is not None
        low, high = quantizer.spec.qmin, quantizer.spec.qmax
        scale = params.scale.float().reshape(-1)
        zero_point = params.zero_point.reshape(-1)
        y = linear_codes(rows, self.weight.laid_out, self.kernel_bias, scale, zero_point, low, high)
        return as_dtype(y.view(*x.shape[:-1], y.shape[-1]), x.dtype)


def _by_output(x: Tensor, groups: tuple[int, int], is_transposed: bool) -> Tensor:
    """Parameters of a weight, whatever their granularity, as [outputs, groups]."""
    if x.ndim == 2 and x.numel() == groups[0] * groups[1] and groups[1] > 1:
        return (x.T if is_transposed else x).contiguous()
    return x.reshape(-1, 1).expand(groups).contiguous()


def _is_affine(spec: TensorSpec) -> bool:
    return isinstance(scheme_of(spec), Affine) and spec.dtype.kind == "integer"
