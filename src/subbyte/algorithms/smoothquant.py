"""smoothquant: outliers of activations moved into the weights that meet them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.data_flow import ChannelLink
from subbyte.adaptor.pytorch.prepared.observe import See, observe_inputs, sample_inputs
from subbyte.adaptor.pytorch.prepared.scaling import gathered, input_axis, input_ranges, move_scale
from subbyte.algorithms.float_function import same_function
from subbyte.algorithms.linked_layers import LinkedLayers, quantized_links
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import register_algorithm

_GRID = tuple(step / 10 for step in range(11))


@register_algorithm("smoothquant")
class SmoothQuant(RecoveryMethod):
    """SmoothQuant (Xiao et al., 2023, equation 4): no float output changes.

    Channel j of what ops read is divided by `s_j = max|x_j|^alpha / max|w_j|^(1 - alpha)`, and the weights that meet
    it are multiplied by it: x is all that the calibration data shows of the channel, w what all its readers have. The
    division goes into what makes the channel: a LayerNorm, an RMSNorm, a BatchNorm that is not folded, or an op, as
    v_proj is before o_proj, up_proj before down_proj, a convolution before another. Ops with nothing before them that
    could take it up, as behind gelu or a residual stream, stay as they are.

    Args:
        alpha: how much of the outliers moves, 0..1; `auto` takes for each source the one of 0, 0.1, ..., 1, or no scale
            at all, with which the readers' quantized outputs are nearest to their float ones.
        samples: that `auto` compares outputs on.
    """

    stage: ClassVar[Stage] = Stage.FLOAT
    excludes: ClassVar[frozenset[str]] = frozenset({"awq"})

    alpha: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = 0.5
    samples: Annotated[int, Field(gt=0)] = 32

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        links = quantized_links(model, self.name, self.unsupported)
        largest = _largest_inputs(model, links)
        with same_function(model, self.name):
            for link in links:
                move_scale(model.model, link, self._factor(model, link, largest))
        model.recalibrate()

    def _factor(self, model: PreparedModel, link: ChannelLink, largest: Mapping[str, Tensor]) -> Tensor:
        count = link.source.channels
        given = torch.stack([gathered(largest[name], own, count) for name, own in link.readers.items()]).amax(0)
        modules = {name: model.model.get_submodule(name) for name in link.readers}
        weights = torch.stack([input_ranges(modules[name], own, count) for name, own in link.readers.items()]).amax(0)
        if self.alpha != "auto":
            return smoothing(given, weights, link.free, self.alpha)
        ops = [model.ops[name] for name in link.readers if name in model.ops]
        inputs = sample_inputs(model, [op.name for op in ops], self.samples)
        candidates = [smoothing(given, weights, link.free, alpha) for alpha in _GRID]
        return LinkedLayers(link, ops, list(inputs.values())).best([torch.ones_like(given), *candidates])


def smoothing(given: Tensor, weights: Tensor, free: Tensor, alpha: float) -> Tensor:
    """`given^alpha / weights^(1 - alpha)`; 1 where a channel is not free or either is zero.

    Args:
        given: the largest |input| of each channel.
        weights: the largest |weight| that meets it.
        free: bool, those that may be scaled.
        alpha: 0..1.
    """
    alive = free.to(given.device) & (given > 0) & (weights > 0)
    return torch.where(alive, given.pow(alpha) / weights.pow(1 - alpha), 1.0)


def _largest_inputs(model: PreparedModel, links: list[ChannelLink]) -> dict[str, Tensor]:
    """The largest |input| of each input channel of each reader, in float."""
    names = {name for link in links for name in link.readers}
    found: dict[str, Tensor] = {}

    def seeing(name: str) -> See:
        axis = input_axis(model.model.get_submodule(name))

        def see(x: Tensor) -> None:
            largest = x.float().abs().movedim(axis, 0).flatten(1).amax(1)
            found[name] = torch.maximum(found[name], largest) if name in found else largest

        return see

    observe_inputs(model, {name: seeing(name) for name in names})
    return found
