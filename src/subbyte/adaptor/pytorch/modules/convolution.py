"""Convolutions of one, two and three dimensions, and their transposes."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.modules.handler import WeightedHandler
from subbyte.adaptor.pytorch.modules.registry import register_module
from subbyte.errors import ConfigError
from subbyte.numerics import Geometry, Learned, learned_convolution
from subbyte.spec import TensorSpec

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_FORWARDS = (nn.Conv1d._conv_forward, nn.Conv2d._conv_forward, nn.Conv3d._conv_forward)


class _SpatialHandler(WeightedHandler):
    def __init__(self, op_type: str, dimensions: int) -> None:
        self.op_type = op_type  # type: ignore[misc]  # one class serves three types
        self.dimensions = dimensions
        self.norm_types = (_NORMS[dimensions - 1],)  # type: ignore[misc]

    def over_output(self, vector: Tensor) -> Tensor:
        return vector.reshape(-1, *[1] * self.dimensions)


class ConvolutionHandler(_SpatialHandler):
    """`Conv1d/2d/3d`, weight [out, in / groups, *kernel]; a group is n input channels of one output and tap."""

    def apply(self, module: Any, x: Tensor, weight: Tensor, *extra: Any) -> Tensor:
        y: Tensor = module._conv_forward(x, weight, None)
        return y

    def takes_learned(self, module: Any, x: Tensor) -> bool:
        # A number for all dimensions, or a word, where somebody wrote it over what the module was made with.
        has_words = any(isinstance(size, int | str) for size in (module.stride, module.padding, module.dilation))
        is_own = type(module)._conv_forward is not _FORWARDS[self.dimensions - 1]
        return not (has_words or is_own) and module.padding_mode == "zeros" and x.ndim == self.dimensions + 2

    def apply_learned(self, module: Any, x: Learned, weight: Learned) -> Tensor:
        geometry = Geometry(module.stride, module.padding, module.dilation, module.groups)
        return learned_convolution(x, weight, geometry)

    def macs(self, module: Any, inputs: tuple[Any, ...], output: Tensor) -> int:
        return int(output.numel() * prod(module.weight.shape[1:]))

    def as_matrix(self, module: Any, weight: Tensor) -> Tensor:
        by_group: Tensor = weight.unflatten(0, (module.groups, -1))
        return by_group.flatten(2)

    def from_matrix(self, module: Any, matrix: Tensor) -> Tensor:
        return matrix.reshape(module.weight.shape)

    def columns(self, module: Any, x: Tensor) -> Tensor:
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        padded = F.pad(_batched(x, self.dimensions), module._reversed_padding_repeated_twice, mode)
        return _windows(padded, module.kernel_size, module.stride, module.dilation, module.groups)

    def is_depthwise(self, module: Any) -> bool:
        return bool(module.groups == module.in_channels > 1)

    def group_terms(
        self, module: Any, x: Tensor, grid: Tensor, scale: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        channels = x.unflatten(-1 - self.dimensions, (module.groups, -1))
        for group in range(scale.shape[1]):
            part = slice(group * size, (group + 1) * size)
            x_part = _channels(channels, part, self.dimensions).flatten(-2 - self.dimensions, -1 - self.dimensions)
            for tap in product(*(range(length) for length in grid.shape[2:])):
                yield x_part, _only(grid[:, part], tap), _at_tap(scale[:, group], tap)


class TransposedConvolutionHandler(_SpatialHandler):
    """`ConvTranspose1d/2d/3d`, weight [in, out / groups, *kernel]."""

    channel_axis = 1
    group_axis = 0

    def check_spec(self, module: Any, spec: TensorSpec, name: str) -> None:
        super().check_spec(module, spec, name)
        if spec.granularity.kind == "per_group" and module.groups > 1:
            raise ConfigError(f"op {name!r}: per_group is not defined for a transposed convolution with groups")

    def apply(self, module: Any, x: Tensor, weight: Tensor, *extra: Any) -> Tensor:
        output_size = extra[0] if extra else None
        padding = module._output_padding(
            x,
            output_size,
            module.stride,
            module.padding,
            module.kernel_size,
            self.dimensions,
            module.dilation,
        )
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.dimensions - 1]
        return function(x, weight, None, module.stride, module.padding, padding, module.groups, module.dilation)

    def macs(self, module: Any, inputs: tuple[Any, ...], output: Tensor) -> int:
        return int(inputs[0].numel() * prod(module.weight.shape[1:]))

    # A transposed convolution is one of the kernel turned round, over an input with zeros between its elements.

    def as_matrix(self, module: Any, weight: Tensor) -> Tensor:
        by_group: Tensor = weight.unflatten(0, (module.groups, -1))
        return by_group.transpose(1, 2).flip(self._taps).flatten(2)

    def from_matrix(self, module: Any, matrix: Tensor) -> Tensor:
        kernel = module.weight.shape[2:]
        by_group: Tensor = matrix.unflatten(2, (-1, *kernel)).flip(self._taps)
        return by_group.transpose(1, 2).flatten(0, 1)

    @property
    def _taps(self) -> tuple[int, ...]:
        return tuple(range(-self.dimensions, 0))

    def columns(self, module: Any, x: Tensor) -> Tensor:
        x = _batched(x, self.dimensions)
        sizes = [(length - 1) * step + 1 for length, step in zip(x.shape[2:], module.stride, strict=True)]
        spread = x.new_zeros(*x.shape[:2], *sizes)
        between: Any = (..., *(slice(None, None, step) for step in module.stride))
        spread[between] = x
        reach = [step * (length - 1) for step, length in zip(module.dilation, module.kernel_size, strict=True)]
        ends = zip(reach, module.padding, module.output_padding, strict=True)
        padding = [[far - near, far - near + more] for far, near, more in ends]
        padded = F.pad(spread, [end for pair in reversed(padding) for end in pair])
        return _windows(padded, module.kernel_size, (1,) * self.dimensions, module.dilation, module.groups)

    def output_channels(self, module: Any) -> int:
        return int(module.out_channels)

    def channel_scale(self, module: Any, scale: Tensor) -> Tensor:
        return scale.reshape(-1).repeat(module.groups) if scale.ndim else scale

    def group_terms(
        self, module: Any, x: Tensor, grid: Tensor, scale: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for group in range(scale.shape[0]):
            part = slice(group * size, (group + 1) * size)
            x_part = _channels(x, part, self.dimensions)
            for tap in product(*(range(length) for length in grid.shape[2:])):
                yield x_part, _only(grid[part], tap), _at_tap(scale[group], tap)


def _batched(x: Tensor, dimensions: int) -> Tensor:
    return x if x.ndim > dimensions + 1 else x[None]


def _windows(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], groups: int
) -> Tensor:
    """What each product of a convolution reads of a padded input: [groups, channels of a group * taps, products]."""
    for axis, (length, step, spacing) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        x = x.unfold(axis, (length - 1) * spacing + 1, step)[..., ::spacing]
    n = len(kernel)
    x = x.unflatten(1, (groups, -1))  # [samples, groups, channels, *places, *kernel]
    order = (1, 2, *range(3 + n, 3 + 2 * n), 0, *range(3, 3 + n))
    return x.permute(order).flatten(2 + n).flatten(1, 1 + n)


def _channels(x: Tensor, part: slice, dimensions: int) -> Tensor:
    """Some channels of [..., channels, *spatial]."""
    start, stop, _ = part.indices(x.shape[-1 - dimensions])
    return x.narrow(-1 - dimensions, start, stop - start)


def _at_tap(scale: Tensor, tap: tuple[int, ...]) -> Tensor:
    """Of [channels, *kernel], the column of one kernel tap."""
    for index in tap:
        scale = scale[:, index]
    return scale


def _only(weight: Tensor, tap: tuple[int, ...]) -> Tensor:
    """The weight with every kernel tap but one set to zero."""
    mask = torch.zeros(weight.shape[2:], dtype=weight.dtype, device=weight.device)
    mask[tap] = 1
    return weight * mask


for _dimensions, _convolution in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), start=1):
    register_module(_convolution, ConvolutionHandler(_convolution.__name__, _dimensions))
for _dimensions, _transposed in enumerate((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), start=1):
    register_module(_transposed, TransposedConvolutionHandler(_transposed.__name__, _dimensions))
