"""Moving a scale from the output channels of one module into the input channels of the ops that read them."""

from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.adaptor.pytorch.prepared.channel_rules import NONE
from subbyte.adaptor.pytorch.prepared.data_flow import ChannelLink
from subbyte.adaptor.pytorch.prepared.new_values import give_values
from subbyte.adaptor.pytorch.weight import fold_into


def move_scale(model: nn.Module, link: ChannelLink, factor: Tensor) -> None:
    """Divide what a source gives by a factor, and multiply the weights that read it: the function stays.

    Args:
        model: prepared.
        link: of it.
        factor: [channels of the source], positive; 1 where the channel is not free.
    """
    _divide_output(model.get_submodule(link.source.name), factor)
    for name, channels in link.readers.items():
        module: Any = model.get_submodule(name)
        scaled = scaled_inputs(module, module.weight.detach().float(), over_inputs(factor, channels))
        give_values(module.weight, scaled)


def over_inputs(factor: Tensor, channels: Tensor) -> Tensor:
    """A value for each channel of a source, for each input channel of a reader; 1 where that is another's.

    Args:
        factor: [channels of the source].
        channels: as in `ChannelLink.readers`.
    """
    padded = torch.cat([factor, factor.new_ones(1)])  # NONE is the last
    return padded[channels.to(factor.device).long()]


def scaled_inputs(module: Any, weight: Tensor, factor: Tensor) -> Tensor:
    """A weight times a factor for each input channel: [input channels]."""
    handler = handler_of(module)
    assert isinstance(handler, WeightedHandler)
    shape = [1] * weight.ndim
    shape[handler.group_axis] = weight.shape[handler.group_axis]
    by_group = factor.reshape(-1, *shape)
    scaled: Tensor = weight.unflatten(0, (len(by_group), -1)) * by_group
    return scaled.flatten(0, 1)


def input_axis(module: Any) -> int:
    """The axis, counted from the last, of the channels in what an op is given."""
    handler = handler_of(module)
    assert isinstance(handler, WeightedHandler)
    return -handler.over_output(torch.empty(1)).ndim


def output_ranges(module: Any) -> Tensor:
    """The largest |weight| of each output channel, BatchNorm's factor included: [channels]."""
    handler = handler_of(module)
    assert isinstance(handler, WeightedHandler)
    return _by_axis(_folded_weight(module, handler), handler.channel_axis, handler.output_channels(module))


def input_ranges(module: Any, channels: Tensor, count: int) -> Tensor:
    """The largest |weight|, BatchNorm's factor included, that meets each channel of a source: [count].

    Args:
        module: reads them.
        channels: as in `ChannelLink.readers`.
        count: how many channels the source has.
    """
    handler = handler_of(module)
    assert isinstance(handler, WeightedHandler)
    weight = _folded_weight(module, handler)
    return gathered(_by_axis(weight, handler.group_axis, len(channels)), channels, count)


def gathered(values: Tensor, channels: Tensor, count: int) -> Tensor:
    """The largest of the values (not negative) at the input channels that are one channel of a source: [count]."""
    mine = channels != NONE
    start = torch.zeros(count, device=values.device)
    return start.scatter_reduce(0, channels[mine].long().to(values.device), values[mine], "amax")


def _by_axis(weight: Tensor, axis: int, channels: int) -> Tensor:
    """The largest |weight| at each place of an axis; of a weight in groups, at each place in each group."""
    size = weight.shape[axis]
    by_group: Tensor = weight.abs().unflatten(0, (channels // size, -1)).movedim(axis + 1, 1)
    return by_group.flatten(2).amax(2).flatten()


def _folded_weight(module: Any, handler: WeightedHandler) -> Tensor:
    norm = getattr(module, "folded_norm", None)
    weight: Tensor = module.weight.detach().float()
    return weight if norm is None else fold_into(weight, norm.factor_and_bias(None)[0], handler)


def _divide_output(module: Any, factor: Tensor) -> None:
    norm: FoldedBatchNorm | None = getattr(module, "folded_norm", None)
    if norm is not None:
        _divide_norm(norm, factor)
        return
    handler = handler_of(module)
    if not isinstance(handler, WeightedHandler):
        _divide_norm(module, factor)
        return
    give_values(module.weight, fold_into(module.weight.detach().float(), 1 / factor, handler))
    if module.bias is not None:
        give_values(module.bias, module.bias.detach().float() / factor)


def _divide_norm(norm: Any, factor: Tensor) -> None:
    if norm.weight is None:  # a BatchNorm without one
        norm.running_var = ((norm.running_var + norm.eps) * factor.square() - norm.eps).to(norm.running_var.dtype)
        return
    for name in ("weight", "bias"):
        if norm._parameters.get(name) is not None:
            give_values(norm._parameters[name], norm._parameters[name].detach().float() / factor)
