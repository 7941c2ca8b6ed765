"""awq: the weights that meet large activations made large, so that rounding hurts them less."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.channel_rules import NONE
from subbyte.adaptor.pytorch.prepared.data_flow import ChannelLink
from subbyte.adaptor.pytorch.prepared.observe import observe_inputs, sample_inputs
from subbyte.adaptor.pytorch.prepared.scaling import input_axis, move_scale
from subbyte.algorithms.chunked_sum import ChunkedSum
from subbyte.algorithms.float_function import same_function
from subbyte.algorithms.linked_layers import LinkedLayers, quantized_links
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import register_algorithm
from subbyte.algorithms.weight_clipping import ElementMoments, clipped_params

_CLIPPING = "ranges"  # the last unit


@register_algorithm("awq")
class ActivationAwareScaling(RecoveryMethod):
    """AWQ (Lin et al., 2024, equations 4 and 5), and its search of narrower weight ranges: no float output changes.

    The weights that meet channel j are multiplied by `s_j = mean|x_j|^a`, and what makes the channel is divided by it:
    of a = 0 (no scale), 1 / steps, ... 1 the one with which the quantized outputs of all ops that read these channels
    are nearest to their float ones on some samples, weights and inputs quantized as they are configured. Where a scale
    can go is as in smoothquant. Then each scale of each weight is found anew, of the part of its range (1, 0.95 ...
    0.5) with the least error of the outputs: see `clipped_params`. A method of stage float that runs after this one
    finds these again without that.

    Args:
        steps: of the search of a.
        samples: of calibration data that outputs are compared on.
        clip: whether ranges are searched.
    """

    stage: ClassVar[Stage] = Stage.FLOAT
    excludes: ClassVar[frozenset[str]] = frozenset({"smoothquant"})

    steps: Annotated[int, Field(gt=0)] = 20
    samples: Annotated[int, Field(gt=0)] = 32
    clip: bool = True

    def units(self, model: PreparedModel) -> list[str]:
        links = quantized_links(model, self.name, "skip" if self.clip else self.unsupported)
        return [*(link.source.name for link in links), _CLIPPING]

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        if unit == _CLIPPING:
            self._find_ranges(model)
            return
        (link,) = (link for link in model.flow.links() if link.source.name == unit)
        with same_function(model, self.name):
            move_scale(model.model, link, self._factor(model, link))

    def _factor(self, model: PreparedModel, link: ChannelLink) -> Tensor:
        ops = [model.ops[name] for name in link.readers if name in model.ops]
        inputs = sample_inputs(model, [op.name for op in ops], self.samples)
        layers = LinkedLayers(link, ops, [inputs[op.name] for op in ops])
        given = _mean_inputs(layers)
        factors = [balanced(given, link.free, step / self.steps) for step in range(self.steps + 1)]
        return layers.best(factors)

    def _find_ranges(self, model: PreparedModel) -> None:
        model.recalibrate()
        ops = [op for op in model.ops.values() if self.clip and op.handler.takes_activation]
        moments = {op.name: ElementMoments(op) for op in ops}
        observe_inputs(model, {name: each.see for name, each in moments.items()})
        ratios = tuple(1 - step / 20 for step in range(11))
        for op in ops:
            if moments[op.name].powers.count:
                op.write_params(clipped_params(op, moments[op.name], ratios))


def balanced(given: Tensor, free: Tensor, exponent: float) -> Tensor:
    """`given^exponent`, over the geometric mean of its ends; 1 where a channel is not free or is always zero.

    Args:
        given: the mean |input| of each channel.
        free: bool, those that may be scaled.
        exponent: 0..1.
    """
    alive = free.to(given.device) & (given > 0)
    if not bool(alive.any()):
        return torch.ones_like(given)
    scale = given.pow(exponent)
    low, high = torch.aminmax(scale[alive])
    return torch.where(alive, scale / (low * high).sqrt(), 1.0)


def _mean_inputs(layers: LinkedLayers) -> Tensor:
    """The mean |x| of each channel of the source where ops read it."""
    count = layers.link.source.channels
    total, met = torch.zeros(count), torch.zeros(count)
    for op, inputs in zip(layers.ops, layers.inputs, strict=True):
        channels = layers.link.readers[op.name]
        mine = channels != NONE
        sums = ChunkedSum(lambda values: values.double().sum(1))
        for x in inputs:
            sums.add(x.float().abs().movedim(input_axis(op.module), 0).flatten(1).cpu())
        found = sums.total()
        if found is not None:
            total.index_add_(0, channels[mine].long(), found.float()[mine])
            met.index_add_(0, channels[mine].long(), torch.full((int(mine.sum()),), float(sums.count)))
    return (total / met.clamp(min=1)).to(layers.ops[0].weight.device)
