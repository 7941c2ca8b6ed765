"""A packed weight in the order that the kernels read."""

from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.kernels.linear import LinearWeight
from subbyte.numerics import pack


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
