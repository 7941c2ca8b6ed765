"""The weights and scales of some ops, to be put back."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.spec import QuantParams


@dataclass(frozen=True)
class Parameters:
    """As they were when this was made.

    Args:
        ops: each with its weight, and its scale and zero point.
        quantizers: each with its scale and zero point.
    """

    ops: Sequence[tuple[WeightedOp, Tensor, QuantParams]]
    quantizers: Sequence[tuple[ActivationQuantizer, QuantParams]]

    @classmethod
    def of(cls, ops: Sequence[WeightedOp], quantizers: Sequence[ActivationQuantizer]) -> "Parameters":
        """Of ops and input quantizers as they are now."""
        return cls(
            [(op, op.weight.clone(), _own(op.params)) for op in ops],
            [(quantizer, _own(quantizer.params)) for quantizer in quantizers],
        )

    def put_back(self) -> None:
        """Make them again what they were."""
        for op, weight, params in self.ops:
            op.write_params(params)
            op.write_weight(weight)
        for quantizer, params in self.quantizers:
            quantizer.set_params(params)


def _own(params: QuantParams) -> QuantParams:
    # Quantizers write their buffers in place.
    return QuantParams(params.scale.clone(), None if params.zero_point is None else params.zero_point.clone())
