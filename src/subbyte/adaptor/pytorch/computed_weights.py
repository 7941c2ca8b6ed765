"""The weights that a model in training computes with, in the place of those that it keeps."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted

ComputedWeights = Mapping[nn.Parameter, Tensor]


@dataclass(frozen=True)
class Sample:
    """What is observed to find ranges of activations.

    Args:
        batches: calibration data.
        weights: what stands in for weights meanwhile; empty for the float ones.
    """

    batches: Sequence[Batch] = ()
    weights: ComputedWeights = field(default_factory=dict)


@torch.no_grad()
def computed_weights(model: nn.Module) -> ComputedWeights:
    """The quantized values of a prepared model's weights, each by the parameter that it comes of, of its shape."""
    parts = [part for part in model.modules() if isinstance(part, PreparedWeighted)]
    return {
        part.weight: part.fake_weight(part.weight, part.folded_norm).to(part.weight.dtype)
        for part in parts
        if isinstance(part.weight, nn.Parameter)
    }


@contextmanager
def standing_in(weights: ComputedWeights) -> Iterator[None]:
    """Let parameters hold other values meanwhile."""
    kept = {parameter: parameter.data for parameter in weights}
    try:
        for parameter, value in weights.items():
            parameter.data = value
        yield
    finally:
        for parameter, value in kept.items():
            parameter.data = value
