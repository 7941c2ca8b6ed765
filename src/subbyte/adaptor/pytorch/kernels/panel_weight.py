"""A packed weight in the order that the kernels read."""

from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.numerics import pack

PARTS = ("packed", "scale", "zero_point", "sums", "values")


class PanelWeight(PackedWeight):
    """A packed weight laid out for the kernels; codes in the order of a checkpoint are made when asked for."""

    layout: tuple[int, int, int, int]
    is_transposed: bool

    @classmethod
    def take(cls, weight: PackedWeight, laid_out: LinearWeight, *, is_transposed: bool) -> None:
        """Make a packed weight one of these."""
        del weight.packed
        weight.__class__ = cls
        for name in PARTS:
            weight.register_buffer(f"panel_{name}", getattr(laid_out, name), persistent=False)
        vars(weight)["layout"] = (laid_out.bits, laid_out.outputs, laid_out.inputs, laid_out.group_size)
        vars(weight)["is_transposed"] = is_transposed

    @property
    def laid_out(self) -> LinearWeight:
        parts: dict[str, Any] = {name: self._buffers[f"panel_{name}"] for name in PARTS}
        bits, outputs, inputs, group_size = self.layout
        return LinearWeight(**parts, bits=bits, outputs=outputs, inputs=inputs, group_size=group_size)

    @property
    def packed(self) -> Tensor:  # type: ignore[override]
        codes = self.laid_out.codes().to(torch.int16) + self.spec.dtype.qmin
        return pack(codes.T if self.is_transposed else codes, self.spec.dtype.bits)

    @property
    def device(self) -> torch.device:
        return self.scale.device

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}packed"] = self.packed
