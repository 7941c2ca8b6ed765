"""batch_norm: the statistics of BatchNorms, taken anew from the quantized model."""

from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Generator
from torch.nn.modules.batchnorm import _BatchNorm

from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp
from subbyte.adaptor.pytorch.weight import folds_first
from subbyte.algorithms.channel_moments import ChannelMoments
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import register_algorithm
from subbyte.errors import RecoveryError


@register_algorithm("batch_norm")
class BatchNormStatistics(RecoveryMethod):
    """Replace the running mean and variance of each BatchNorm by those of what it is given in the quantized model.

    One after the other in the order they run, so that each sees what the ones before it give now (Sun et al., 2019,
    Hybrid 8-bit Floating Point Training and Inference: statistics tuned after quantization). Codes and scales stay.
    The data also decides what the statistics are: give data that is distributed as what will be met later.
    """

    stage: ClassVar[Stage] = Stage.CORRECTION

    def obstacle(self, op: WeightedOp) -> str:
        if op.module.folded_norm is not None and folds_first(op.spec):
            return "its per_tensor weight was rounded with BatchNorm's factor in it, which other statistics change"
        return ""

    def units(self, model: PreparedModel) -> list[str]:
        """Ops with a BatchNorm that they apply, and BatchNorms that stand alone, in the order they run."""
        folded = [name for name in self.supported(model) if name in model.ops and model.ops[name].module.norm]
        found = folded + [name for name, module in model.model.named_modules() if _keeps_statistics(module)]
        if not found:
            raise RecoveryError(f"recovery method {self.name!r}: the model has no BatchNorm with running statistics")
        return model.in_order(found)

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        if unit in model.ops:
            op = model.ops[unit]
            outputs = (op.by_channel(call.result) for call in model.op_calls(unit))
            _renew_folded(op, ChannelMoments.of(outputs, unit))
        else:
            calls = chain.from_iterable(model.quantized_calls(unit))
            inputs = (call.input.movedim(1, 0).flatten(1) for call in calls)
            _write(model.model.get_submodule(unit), ChannelMoments.of(inputs, unit))


def _keeps_statistics(module: Any) -> bool:
    own = isinstance(module, _BatchNorm) and not isinstance(module, FoldedBatchNorm)
    return own and module.running_mean is not None


def _renew_folded(op: WeightedOp, after: ChannelMoments) -> None:
    """From what an op gives with its BatchNorm, `y = x g + shift`, back to x; statistics stay where g is 0."""
    norm: Any = op.module.folded_norm
    factor, shift = (part.double() for part in norm.factor_and_bias(None))
    mean, variance = (after.mean - shift) / factor, after.variance / factor.square()
    known = factor != 0
    mean, variance = mean.where(known, norm.running_mean), variance.where(known, norm.running_var)
    _write(norm, ChannelMoments(mean, variance))


def _write(norm: Any, moments: ChannelMoments) -> None:
    with torch.no_grad():
        norm.running_mean.copy_(moments.mean)
        norm.running_var.copy_(moments.variance)
