"""A packed weight in the order that the kernels read."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.kernels.binary_weight import BinaryWeight
from subbyte.kernels.convolution import ConvolutionWeight
from subbyte.kernels.depthwise import DepthwiseWeight
from subbyte.kernels.float_convolution import FloatConvolutionWeight
from subbyte.kernels.float_linear import FloatLinearWeight
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.kernels.packing import pack_codes

LaidOut = LinearWeight | FloatLinearWeight | ConvolutionWeight | FloatConvolutionWeight | DepthwiseWeight | BinaryWeight


class PanelWeight(PackedWeight):
    """A packed weight laid out for the kernels; codes in the order of a checkpoint are made when asked for."""

    plan: Any  # a laid out weight without its tensors, which are buffers
    part_names: tuple[str, ...]  # of those
    lowest_code: int
    is_transposed: bool

    @classmethod
    def take(cls, weight: PackedWeight, laid_out: LaidOut, lowest_code: int, *, is_transposed: bool = False) -> None:
        """Make a packed weight one of these.

        Args:
            weight: as it was.
            laid_out: the same for the kernels, its codes counted from `lowest_code`.
            lowest_code: of the data type.
            is_transposed: whether the weight is [inputs, outputs].
        """
        del weight.packed
        weight.__class__ = cls
        tensors = {name: value for name, value in vars(laid_out).items() if isinstance(value, Tensor)}
        for name, tensor in tensors.items():
            weight.register_buffer(f"panel_{name}", tensor, persistent=False)
        vars(weight)["part_names"] = tuple(tensors)
        vars(weight)["plan"] = replace(laid_out, **dict.fromkeys(tensors, None))  # type: ignore[arg-type]
        vars(weight)["lowest_code"] = lowest_code
        vars(weight)["is_transposed"] = is_transposed

    @property
    def laid_out(self) -> Any:
        parts = {name: self._buffers[f"panel_{name}"] for name in self.part_names}
        if torch.compiler.is_compiling():
            return replace(self.plan, **parts)
        known = vars(self).get("known")  # making one anew would cost small layers a tenth of their time
        if known is None or any(getattr(known, name) is not part for name, part in parts.items()):
            known = vars(self)["known"] = replace(self.plan, **parts)
        return known

    @property
    def packed(self) -> Tensor:  # type: ignore[override]
        codes = (self.laid_out.codes().to(torch.int16) + self.lowest_code).to(torch.int8)
        return pack_codes(codes.T if self.is_transposed else codes, self.spec.dtype.bits)

    @property
    def device(self) -> torch.device:
        return self.scale.device

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}packed"] = self.packed

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The codes are in another order, and scales alone would make a weight of two checkpoints.
        *_, errors = args
        name = prefix.removesuffix(".")
        errors.append(f"{name} is laid out for kernels and takes no state; load it before subbyte.use_kernels")
