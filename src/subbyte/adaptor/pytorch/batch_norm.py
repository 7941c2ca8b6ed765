"""BatchNorm behind a quantized op: normal while it trains, part of the op's scale and bias in eval()."""

from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.number_format import KeepsFormat
from subbyte.adaptor.pytorch.phase import Run
from subbyte.adaptor.pytorch.swap import Swapped, float_class


class FoldedBatchNorm(KeepsFormat, Swapped):
    """Mixin of a BatchNorm whose op applies it: in eval() its forward passes its input through.

    The codes of a per-channel weight do not depend on it: with g = weight / sqrt(var + eps), an op's result
    `sum * s + b` becomes `sum * (s g) + ((b - mean) g + bias)` (Jacob et al., 2018, section 3.2, with g kept
    out of the weight).
    """

    training: bool
    eps: float
    running_mean: Tensor
    running_var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    num_batches_tracked: Tensor
    op_name: str
    run: Run
    _parameters: dict[str, Tensor | None]
    _buffers: dict[str, Tensor | None]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            awaited.reach(self.run, self.op_name)
            # What is observed must not depend, by a rounding, on which ops happen to be quantized.
            if self.run.phase != "observe":
                return x
        y: Tensor = float_class(self).forward(self, x.to(self.running_mean.dtype))  # type: ignore[arg-type]
        return y.to(x.dtype)

    def fold_inputs(self) -> list[Tensor | None]:
        """Everything that tells whether the factor and the bias have changed."""
        # The counter too: the statistics are updated by code that leaves their versions as they are.
        return [*self._parameters.values(), *self._buffers.values()]  # nn.Module's lookups would cost more

    def factor_and_bias(self, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """g and `(bias - mean) g + norm bias`, [channels], computed in float64 and rounded once to fp32."""
        with torch.no_grad():
            return FoldedBatchNorm.learned_factor_and_bias(self, bias)

    def learned_factor_and_bias(self, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same with gradients of its weight and bias, and of the op's: statistics are frozen, these still learn."""
        factor = torch.rsqrt(self.running_var.double() + self.eps)
        if self.weight is not None:
            factor = factor * self.weight.double()
        shift = -self.running_mean.double()
        if bias is not None:
            shift = shift + bias.double()
        shift = shift * factor
        if self.bias is not None:
            shift = shift + self.bias.double()
        return factor.float(), shift.float()


class AbsorbedBatchNorm(Swapped):
    """Mixin of a BatchNorm of a converted model: its op holds its factor and bias; nothing is left of it."""

    op_name: str
    run: Run

    def forward(self, x: Tensor) -> Tensor:
        awaited.reach(self.run, self.op_name)
        return x

    @staticmethod
    def absorb(module: nn.Module) -> None:
        """Drop parameters and statistics."""
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            if name in module._parameters or name in module._buffers:
                setattr(module, name, None)

    def _load_from_state_dict(self, *args: Any) -> None:
        # BatchNorm's own would put back the counter that is gone.
        return
