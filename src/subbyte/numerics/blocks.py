"""Which elements of a tensor share one scale: the shapes that a granularity implies."""

from collections.abc import Sequence

import torch
from torch import Tensor

from subbyte.errors import ConfigError
from subbyte.spec import TensorSpec


def block_axis(spec: TensorSpec, ndim: int) -> int:
    """The axis of `per_channel` or `per_group`, counted from 0.

    Raises:
        ConfigError: a tensor of `ndim` axes has no such axis.
    """
    default = 0 if spec.granularity.kind == "per_channel" or ndim < 2 else 1
    axis = default if spec.axis is None else spec.axis
    if not -ndim <= axis < ndim:
        raise ConfigError(f"{spec.granularity} along axis {axis}: the tensor has only {ndim} axes")
    return axis % ndim


def scale_shape(shape: Sequence[int], spec: TensorSpec) -> tuple[int, ...]:
    """The shape of scale and zero point for a tensor of `shape`; see QuantParams."""
    kind, ndim = spec.granularity.kind, len(shape)
    if kind == "per_tensor" or ndim == 0:
        return ()
    if kind == "per_token":
        return (*shape[:-1], 1)
    axis = block_axis(spec, ndim)
    if kind == "per_channel":
        return tuple(size if index == axis else 1 for index, size in enumerate(shape))
    groups = -(-shape[axis] // spec.granularity.group_size)
    return tuple(groups if index == axis else size for index, size in enumerate(shape))


def expand(param: Tensor, shape: Sequence[int], spec: TensorSpec) -> Tensor:
    """Scale or zero point in a shape that broadcasts against a tensor of `shape`."""
    if spec.granularity.kind != "per_group" or param.ndim < len(shape) or not shape:
        return param
    axis = block_axis(spec, len(shape)) - len(shape)
    repeated = param.repeat_interleave(min(spec.granularity.group_size, shape[axis]), dim=axis)
    return repeated.narrow(axis, 0, shape[axis])


def to_blocks(x: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor | None]:
    """The elements of each block in a row, rows in the order of the flattened scale.

    Returns:
        values [blocks, elements], and counts of the same shape (0 where a short last group was
        padded) or None where every element counts once.
    """
    kind = spec.granularity.kind
    if kind == "per_tensor" or x.ndim == 0:
        return x.reshape(1, -1), None
    if kind == "per_token":
        return x[None].flatten(0, -2), None
    axis = block_axis(spec, x.ndim)
    if kind == "per_channel":
        return x.movedim(axis, 0)[..., None].flatten(1), None
    return _groups(x, axis, spec.granularity.group_size)


def _groups(x: Tensor, axis: int, size: int) -> tuple[Tensor, Tensor | None]:
    size = max(min(size, x.shape[axis]), 1)  # a group longer than the axis is all of it
    missing = -x.shape[axis] % size
    counts = None
    if missing:
        padding = x.new_zeros([missing if index == axis else length for index, length in enumerate(x.shape)])
        counts = _rows(torch.cat([torch.ones_like(x), padding], axis), axis, size)
        x = torch.cat([x, padding], axis)
    return _rows(x, axis, size), counts


def _rows(x: Tensor, axis: int, size: int) -> Tensor:
    grouped: Tensor = x.unflatten(axis, (-1, size))
    return grouped.movedim(axis + 1, -1).reshape(-1, size)
