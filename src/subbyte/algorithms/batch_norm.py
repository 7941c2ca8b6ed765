"""batch_norm: the statistics of BatchNorms, renewed for what the quantized model gives them."""

from collections.abc import Iterable
from itertools import chain
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.prepared import Call, PreparedModel, WeightedOp
from subbyte.adaptor.pytorch.weight import folds_first
from subbyte.algorithms.channel_moments import ChannelMoments
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import register_algorithm
from subbyte.errors import RecoveryError


@register_algorithm("batch_norm")
class BatchNormStatistics(RecoveryMethod):
    """Renew the running mean and variance of each BatchNorm, so that they fit the quantized model.

    One after the other in the order they run, so that each sees what the ones before it give now. Codes and scales
    stay. With x what a BatchNorm is given in the quantized model and y what it gives in the float one:

    * target `float`: the statistics with which its output has the mean and the variance of y, on the same data;
    * target `data`: the mean and the variance of x (Sun et al., 2019, Hybrid 8-bit Floating Point Training and
      Inference: statistics tuned after quantization). They forget those of training, and are right as far as the data
      is distributed as what the model was trained on.

    Args:
        target: see above.
    """

    stage: ClassVar[Stage] = Stage.STATISTICS

    target: Literal["float", "data"] = "float"

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
        op = model.ops.get(unit)
        norm: Any = model.model.get_submodule(unit) if op is None else op.module.folded_norm
        calls = model.op_calls(unit) if op else chain.from_iterable(model.quantized_calls(unit))
        given = _output_moments(unit, op, calls)
        if self.target == "data":
            _write(norm, *_input_moments(norm, given))
            return
        calls = model.float_op_calls(unit) if op else chain.from_iterable(model.float_calls(unit))
        _write(norm, *_matching(norm, given, _output_moments(unit, op, calls)))


def _keeps_statistics(module: Any) -> bool:
    own = isinstance(module, _BatchNorm) and not isinstance(module, FoldedBatchNorm)
    return own and module.running_mean is not None


def _output_moments(name: str, op: WeightedOp | None, calls: Iterable[Call]) -> ChannelMoments:
    """Of what a BatchNorm gives, by itself or as the last part of an op."""
    if op is None:
        return ChannelMoments.of(((call.place, call.result.movedim(1, 0).flatten(1)) for call in calls), name)
    return ChannelMoments.of(((call.place, op.by_channel(call.result)) for call in calls), name)


def _input_moments(norm: Any, given: ChannelMoments) -> tuple[Tensor, Tensor]:
    """Mean and variance of x where x g + shift has those that are given; not finite where g is 0."""
    factor, shift = (part.double() for part in FoldedBatchNorm.factor_and_bias(norm, None))
    return (given.mean - shift) / factor, given.variance / factor.square()


def _matching(norm: Any, given: ChannelMoments, wanted: ChannelMoments) -> tuple[Tensor, Tensor]:
    """Statistics with which what has the given moments now has the wanted ones; not finite where there are none."""
    mean, _ = _input_moments(norm, given)
    spread = norm.running_var.double() + norm.eps
    renewed = (spread * given.variance / wanted.variance).clamp(min=norm.eps)
    factor = FoldedBatchNorm.factor_and_bias(norm, None)[0].double() * (spread / renewed).sqrt()
    bias = 0.0 if norm.bias is None else norm.bias.detach().double()
    return mean - (wanted.mean - bias) / factor, renewed - norm.eps


def _write(norm: Any, mean: Tensor, variance: Tensor) -> None:
    """Where both are known; a channel without a factor, or that is constant, keeps its statistics."""
    known = torch.isfinite(mean) & torch.isfinite(variance)
    with torch.no_grad():
        norm.running_mean.copy_(torch.where(known, mean, norm.running_mean))
        norm.running_var.copy_(torch.where(known, variance, norm.running_var))
