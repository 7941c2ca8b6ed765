"""From a tensor, or from what was collected of many, to scale and zero point."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.registry import algorithm_of
from subbyte.calibration.statistics import Statistics
from subbyte.errors import CalibrationError, ConfigError
from subbyte.kernels.operator import runs_native
from subbyte.kernels.ranges import affine_params
from subbyte.numerics import (
    QuantizedTensor,
    block_axis,
    is_built_in_affine,
    scale_limits,
    scale_shape,
    scheme_of,
    to_blocks,
)
from subbyte.spec import Granularity, QuantParams, TensorSpec

# Elements looked at once: bounds the memory of search algorithms.
_CHUNK = 1 << 22


def calibrate_tensor(x: Tensor, spec: TensorSpec) -> QuantParams:
    """Parameters for one tensor that is known whole, such as a weight.

    Args:
        x: fp32, bf16 or fp16, any shape.
        spec: its dtype, granularity and algorithm.

    Raises:
        CalibrationError: x holds NaN or infinity, or its scales do not fit in spec's scale_format.
        ConfigError: the algorithm is unknown or has no meaning for the type.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout != torch.strided or x.is_meta:
        raise ConfigError(f"only dense floating-point tensors are quantized, not {_described(x)}")
    pieces = [_calibrate_piece(piece, spec) for piece in _rows(x.detach(), spec)]
    if len(pieces) == 1:
        return pieces[0]
    scale = torch.cat([piece.scale for piece in pieces])
    points = [piece.zero_point for piece in pieces]
    shared = points[0] is None or points[0].ndim == 0
    return QuantParams(scale, points[0] if shared else torch.cat([point for point in points if point is not None]))


def calibrate_statistics(statistics: Statistics, spec: TensorSpec, shape: Sequence[int] = ()) -> QuantParams:
    """Parameters from collected statistics; any bit width can be asked of the same statistics.

    Args:
        statistics: of the kind that spec's algorithm collects.
        spec: dtype, scheme, algorithm.
        shape: of one observed tensor; needed where the granularity is not per_tensor.

    Raises:
        CalibrationError: nothing was collected, or the scales do not fit in spec's scale_format.
    """
    return _fitting_params(statistics.distribution(), spec, shape)


def quantize_tensor(x: Tensor, spec: TensorSpec) -> QuantizedTensor:
    """Calibrate, quantize and pack one tensor.

    Args:
        x: fp32, bf16 or fp16, any shape, also empty.
        spec: how.

    Raises:
        CalibrationError: x holds NaN or infinity, or its scales do not fit in spec's scale_format.
        ConfigError: x is no dense floating-point tensor; or the spec does not fit it, or is of a float type.
    """
    if not isinstance(spec, TensorSpec):
        raise ConfigError(f"spec must be a TensorSpec, as in TensorSpec('int4'), not {spec!r}")
    if spec.is_float:
        raise ConfigError(f"{spec.dtype} is a float type: there is nothing to quantize")
    return QuantizedTensor.from_float(x, calibrate_tensor(x, spec), spec)


def _described(x: Any) -> str:
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    return f"{x.dtype} ({x.layout}) on {x.device}"


def _rows(x: Tensor, spec: TensorSpec) -> Iterator[Tensor]:
    """The tensor, cut along its first axis where every row has scales of its own."""
    kind = spec.granularity.kind
    axis = block_axis(spec, x.ndim) if kind in ("per_channel", "per_group") and x.ndim else None
    by_row = (kind == "per_channel" and axis == 0) or (kind == "per_group" and axis != 0 and x.ndim > 1)
    if x.numel() <= _CHUNK or not by_row:
        yield x
        return
    yield from x.split(max(_CHUNK * x.shape[0] // x.numel(), 1))


def _calibrate_piece(x: Tensor, spec: TensorSpec) -> QuantParams:
    blocks, counts = to_blocks(x, spec)
    distribution = Distribution.of(blocks.float(), None if counts is None else counts.float())
    if not bool(torch.isfinite(distribution.minimum).all() & torch.isfinite(distribution.maximum).all()):
        raise CalibrationError("the tensor holds NaN or infinity")
    return _fitting_params(distribution, spec, x.shape)


def _fitting_params(distribution: Distribution, spec: TensorSpec, shape: Sequence[int]) -> QuantParams:
    """`params_of`, refused where the values would be lost because the format of scales cannot hold theirs.

    A group that is too small beside others of its row may become zeros: that changes the row by less than the rounding
    of its largest group does.

    Raises:
        CalibrationError: values are too small or too large for it.
    """
    params = params_of(distribution, spec, shape)
    smallest, largest = scale_limits(spec)
    if not bool(((params.scale <= smallest) | (params.scale >= largest)).any()):
        return params
    needed = params_of(distribution, replace(spec, scale_format="fp32"), shape).scale
    decisive = needed
    if spec.granularity.kind == "per_group":
        decisive = torch.where(needed == 1.0, 0.0, needed).amax(
            block_axis(spec, len(shape)), keepdim=True
        )  # 1: of zeros
    too_small = (decisive > 0) & (decisive < smallest / 2)
    beyond = needed[(needed > largest) | (too_small & (needed < smallest / 2))]
    if beyond.numel():
        raise CalibrationError(
            f"the values need a scale of {float(beyond[0]):.3g}, and scale_format {spec.scale_format} holds "
            f"{smallest:.3g} to {largest:.3g}; use scale_format bf16 or fp32"
        )
    return params


def params_of_tensor(x: Tensor, spec: TensorSpec) -> QuantParams:
    """Parameters of one tensor, unchecked: what a dynamic quantizer takes of every tensor that comes by.

    Args:
        x: fp32, any shape, also empty.
        spec: dtype, scheme, granularity and algorithm.

    Raises:
        ConfigError: the algorithm is unknown or has no meaning for the type.
    """
    if runs_native(x) and x.ndim and _has_native_range(spec):
        by_row = spec.granularity.kind == "per_token"
        return QuantParams(*affine_params(x, spec.qmin, spec.qmax, symmetric=spec.scheme == "sym", by_row=by_row))
    return params_of(Distribution.of(*to_blocks(x, spec)), spec, x.shape)


def _has_native_range(spec: TensorSpec) -> bool:
    one_pass = spec.algorithm == "minmax" and spec.granularity.kind in ("per_tensor", "per_token")
    return one_pass and spec.scale_format == "fp32" and is_built_in_affine(scheme_of(spec))


def params_of(distribution: Distribution, spec: TensorSpec, shape: Sequence[int]) -> QuantParams:
    """Parameters from the distribution of each block of a tensor of `shape`.

    Raises:
        ConfigError: the algorithm is unknown or has no meaning for the type.
    """
    # To an algorithm each block is a tensor of its own; a scheme with several scales gives [blocks, scales].
    rows = replace(spec, granularity=Granularity(), axis=None)
    flat = algorithm_of(spec).params(distribution, rows)
    if not shape and spec.granularity.kind == "per_tensor":
        shaped: tuple[int, ...] = ()
    else:
        shaped = scale_shape(shape, spec)
    zero_point = flat.zero_point
    if zero_point is not None and zero_point.ndim:
        zero_point = zero_point.reshape(shaped)
    return QuantParams(flat.scale.reshape((*shaped, *flat.scale.shape[1:])), zero_point)
