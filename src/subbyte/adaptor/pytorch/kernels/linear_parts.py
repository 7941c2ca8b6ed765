"""A converted Linear's weight as the kernels take it, output by output."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.kernels.panels import PANEL


@dataclass(frozen=True)
class LinearParts:
    """What a weight consists of.

    Args:
        numbers: uint8 [outputs, inputs], counted from the lowest code.
        scale: fp32 [outputs, groups], of one number.
        zero_point: int32 [outputs, groups], in the domain of the numbers.
        group_size: inputs that share a scale.
        is_transposed: whether the weight is [inputs, outputs].
    """

    numbers: Tensor
    scale: Tensor
    zero_point: Tensor
    group_size: int
    is_transposed: bool


def by_output(module: Any, grid: Grid) -> LinearParts:
    """The parts of a converted Linear, BatchNorm's factor in its scale."""
    tensor, spec = module.weight.tensor, module.weight.spec
    is_transposed = module.handler.channel_axis == 1
    numbers = grid.numbers(tensor)
    numbers = numbers.T if is_transposed else numbers
    size = min(spec.granularity.group_size or numbers.shape[1], numbers.shape[1])
    groups = (numbers.shape[0], -(-numbers.shape[1] // size))
    scale = output_scale(module, module.handler, tensor.params, spec, module.norm_factor) * grid.unit
    scale, zero_point = (_expanded(x, groups, is_transposed) for x in (scale, grid.zero_point(tensor)))
    return LinearParts(numbers, scale, zero_point, size, is_transposed)


def panel_bias(module: Any) -> Tensor:
    """The bias, filled up to whole panels; or nothing."""
    bias = float_bias(module)
    if bias is None:
        return torch.empty(0, device=module.weight.device)
    return torch.nn.functional.pad(bias, (0, -len(bias) % PANEL))


def _expanded(x: Tensor, groups: tuple[int, int], is_transposed: bool) -> Tensor:
    """Parameters of a weight, whatever their granularity, as [outputs, groups]."""
    if x.ndim == 2 and x.numel() == groups[0] * groups[1] and groups[1] > 1:
        return (x.T if is_transposed else x).contiguous()
    return x.reshape(-1, 1).expand(groups).contiguous()
