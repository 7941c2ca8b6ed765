"""Linear, and its transposed form in Hugging Face models."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.modules.handler import WeightedHandler
from subbyte.adaptor.pytorch.modules.registry import register_module


class LinearHandler(WeightedHandler):
    """`y = x W^T + b`, weight [out, in]."""

    op_type = "Linear"
    norm_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.BatchNorm1d,)

    def apply(self, module: Any, x: Tensor, weight: Tensor, *extra: Any) -> Tensor:
        return F.linear(x, weight)

    def macs(self, module: Any, inputs: tuple[Any, ...], output: Tensor) -> int:
        return int(output.numel() * module.weight.shape[self.group_axis])

    def as_matrix(self, module: Any, weight: Tensor) -> Tensor:
        return weight[None]

    def from_matrix(self, module: Any, matrix: Tensor) -> Tensor:
        return matrix[0]

    def columns(self, module: Any, x: Tensor) -> Tensor:
        return x.reshape(1, -1, x.shape[-1]).transpose(1, 2)

    def group_terms(
        self, module: Any, x: Tensor, grid: Tensor, scale: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for group in range(scale.shape[1]):
            part = slice(group * size, (group + 1) * size)
            yield x[..., part], grid[:, part], scale[:, group]


class TransposedLinearHandler(LinearHandler):
    """`y = x W + b`, weight [in, out]: `transformers.pytorch_utils.Conv1D`, as GPT-2 has it."""

    op_type = "Conv1D"
    channel_axis = 1
    group_axis = 0
    norm_types = ()

    def apply(self, module: Any, x: Tensor, weight: Tensor, *extra: Any) -> Tensor:
        return F.linear(x, weight.t())

    def as_matrix(self, module: Any, weight: Tensor) -> Tensor:
        return weight.t()[None]

    def from_matrix(self, module: Any, matrix: Tensor) -> Tensor:
        return matrix[0].t()

    def group_terms(
        self, module: Any, x: Tensor, grid: Tensor, scale: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for group in range(scale.shape[0]):
            part = slice(group * size, (group + 1) * size)
            yield x[..., part], grid[part], scale[group]


register_module(nn.Linear, LinearHandler())
# MultiheadAttention reads the weight of this one and never calls it.
register_module("torch.nn.modules.linear.NonDynamicallyQuantizableLinear", None)
register_module("transformers.pytorch_utils.Conv1D", TransposedLinearHandler())
