"""equalize: the ranges of channels made alike across layers."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Generator, nn

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.adaptor.pytorch.prepared.data_flow import ChannelLink
from subbyte.adaptor.pytorch.prepared.scaling import input_ranges, move_scale, output_ranges
from subbyte.algorithms.float_function import same_function
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import register_algorithm
from subbyte.errors import RecoveryError


@register_algorithm("equalize")
class Equalize(RecoveryMethod):
    """Cross-layer equalization (Nagel et al., 2019, section 4.1): no float output changes.

    Where ops read an op's output through functions f with f(s x) = s f(x), for s > 0 (relu, pooling, reshapes), and
    nothing else does, channel i of that output is divided by `s_i = sqrt(r1_i r2_i) / r2_i`, and what meets it in the
    readers' weights is multiplied by it; r1_i is the largest |weight| that makes the channel, BatchNorm's factor
    included, r2_i the largest that reads it. Repeated over all such pairs until no s differs from 1: then r1_i = r2_i.

    What is added to something else (a residual stream), returned, or read by a function such as relu6, gelu or a
    norm stays as it is.

    Args:
        iterations: at the most.
        tolerance: ends when all s are as near to 1.
    """

    stage: ClassVar[Stage] = Stage.FLOAT

    iterations: Annotated[int, Field(gt=0)] = 50
    tolerance: Annotated[float, Field(ge=0)] = 1e-3

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        links = [link for link in model.flow.links() if link.source.kind == "weighted"]
        if not links and self.unsupported == "error":
            raise RecoveryError(
                "recovery method 'equalize' has no meaning for this model: no op's output is read by other ops alone, "
                "through relu, pooling and the like; leave it out, or pass over that with "
                "{'equalize': {'unsupported': 'skip'}}"
            )
        with same_function(model, self.name):
            for _ in range(self.iterations):
                if max((_equalize(model.model, link) for link in links), default=0.0) <= self.tolerance:
                    break
        model.recalibrate()


def _equalize(model: nn.Module, link: ChannelLink) -> float:
    """One step for one source; gives how far the factors were from 1."""
    made = output_ranges(model.get_submodule(link.source.name))
    read = torch.zeros_like(made)
    for name, channels in link.readers.items():
        read = torch.maximum(read, input_ranges(model.get_submodule(name), channels, len(made)))
    alive = link.free.to(made.device) & (made > 0) & (read > 0)
    factor = torch.where(alive, (made / read).sqrt(), 1.0)
    move_scale(model, link, factor)
    return float((factor - 1).abs().max())
