"""bias_correction: what quantization adds to the mean of each output channel, taken off again."""

from collections.abc import Iterator
from typing import ClassVar

from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import Call, PreparedModel, WeightedOp
from subbyte.algorithms.channel_moments import ChannelMoments
from subbyte.algorithms.chunked_sum import Place
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.obstacles import hidden_input
from subbyte.algorithms.registry import register_algorithm


@register_algorithm("bias_correction")
class BiasCorrection(RecoveryMethod):
    """Add `mean(y) - mean(y~)` to the bias of each output channel: empirical bias correction.

    y is what the op gives in the float model, y~ what it gives in the quantized one, whose ops before it are corrected
    already (Nagel et al., 2019, section 4.2). Where a BatchNorm follows, its bias takes the correction; an op without
    a bias is given one. Codes and scales stay.
    """

    stage: ClassVar[Stage] = Stage.CORRECTION

    def obstacle(self, op: WeightedOp) -> str:
        return hidden_input(op) or ("" if op.handler.takes_activation else "a table that is looked up has no bias")

    def units(self, model: PreparedModel) -> list[str]:
        return self.supported(model)

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        op = model.ops[unit]
        wanted = ChannelMoments.of(_outputs(op, model.float_op_calls(unit)), unit)
        given = ChannelMoments.of(_outputs(op, model.op_calls(unit)), unit)
        op.shift_output((wanted.mean - given.mean).float())


def _outputs(op: WeightedOp, calls: Iterator[Call]) -> Iterator[tuple[Place, Tensor]]:
    return ((call.place, op.by_channel(call.result)) for call in calls)
