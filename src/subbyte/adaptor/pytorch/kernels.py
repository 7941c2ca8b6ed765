"""use_kernels: the ops of a converted model that packed codes can run directly, run so."""

from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.inputs import is_active
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import DynamicQuantizer, InputQuantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.structure import check_structure, structure
from subbyte.adaptor.pytorch.swap import swap
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.errors import ModelError
from subbyte.kernels.linear import PANEL, LinearWeight, linear_codes
from subbyte.numerics import Affine, as_dtype, pack, scheme_of
from subbyte.spec import TensorSpec

EXACT_IN_INT32 = float(1 << 31)


def use_kernels(model: nn.Module) -> nn.Module:
    """The same converted model, its ops run on packed codes where there is a kernel for them.

    Outputs stay what they were, bit for bit. What has no kernel runs as before; `subbyte.summary` shows which.

    Returns:
        the model itself.

    Raises:
        ModelError: the model is not converted.
    """
    state = state_of(model)
    if not state.converted:
        raise ModelError("kernels run converted models; call subbyte.convert(model) first")
    check_structure(model, state)
    found: list[Any] = [module for module in model.modules() if _has_kernel(module)]
    for module in found:
        swap(module, KernelLinear)
        module.lay_out()
    state.structure = structure(model)
    return model


class PanelWeight(PackedWeight):
    """A packed weight laid out for the kernels; codes in the order of a checkpoint are made when asked for."""

    panels: Tensor
    panel_scale: Tensor
    panel_zero_point: Tensor
    panel_sums: Tensor
    layout: tuple[int, int, int, int]
    is_transposed: bool

    @classmethod
    def take(cls, weight: PackedWeight, laid_out: LinearWeight, *, is_transposed: bool) -> None:
        """Make a packed weight one of these."""
        del weight.packed
        weight.__class__ = cls
        parts = (laid_out.packed, laid_out.scale, laid_out.zero_point, laid_out.sums)
        for name, tensor in zip(("panels", "panel_scale", "panel_zero_point", "panel_sums"), parts, strict=True):
            weight.register_buffer(name, tensor, persistent=False)
        vars(weight)["layout"] = (laid_out.bits, laid_out.outputs, laid_out.inputs, laid_out.group_size)
        vars(weight)["is_transposed"] = is_transposed

    @property
    def laid_out(self) -> LinearWeight:
        return LinearWeight(self.panels, self.panel_scale, self.panel_zero_point, self.panel_sums, *self.layout)

    @property
    def packed(self) -> Tensor:  # type: ignore[override]
        codes = self.laid_out.codes().to(torch.int16) + self.spec.dtype.qmin
        return pack(codes.T if self.is_transposed else codes, self.spec.dtype.bits)

    @property
    def device(self) -> torch.device:
        return self.panels.device

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}packed"] = self.packed


class KernelLinear(ConvertedWeighted):
    """A converted Linear that runs on packed codes."""

    weight: PanelWeight
    kernel_bias: Tensor

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
        if quantizer is None or not runs_on_codes(self, quantizer) or not is_active(quantizer, x):
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


def _has_kernel(module: nn.Module) -> bool:
    if not isinstance(module, ConvertedWeighted) or isinstance(module, KernelLinear):
        return False
    if not isinstance(module.handler, LinearHandler) or not _is_affine(module.weight.spec) or 0 in module.weight.shape:
        return False
    return any(runs_on_codes(module, quantizer) for quantizer in module.input_quantizers)


def runs_on_codes(module: ConvertedWeighted, quantizer: InputQuantizer) -> bool:
    """Whether the kernel takes what this quantizer gives; else the op runs as it would without kernels."""
    kind = quantizer.spec.granularity.kind
    fits = kind == "per_tensor" or (kind == "per_token" and isinstance(quantizer, DynamicQuantizer))
    exact = quantizer.max_grid * module.weight.magnitude < EXACT_IN_INT32
    return fits and exact and _is_affine(quantizer.spec)


def _is_affine(spec: TensorSpec) -> bool:
    return isinstance(scheme_of(spec), Affine) and spec.dtype.kind == "integer"
