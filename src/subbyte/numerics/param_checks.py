"""Whether scale, zero point and codes are such as a spec allows."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from subbyte.numerics.packing import packed_size
from subbyte.numerics.schemes import Affine, Codebook, scheme_of, stored_dtype
from subbyte.spec import QuantParams, TensorSpec


def params_problem(params: QuantParams, spec: TensorSpec) -> str:
    """Return why values of `params` are not allowed by `spec`, with the first such value; empty if they are."""
    scheme, scale, zero_point = scheme_of(spec), params.scale, params.zero_point
    wrong = scale[~(torch.isfinite(scale) & (scale > 0))]
    if wrong.numel():
        return f"scale holds {wrong.flatten()[0].item():g}; every scale must be positive and finite"
    if zero_point is None:
        return (
            f"zero_point is missing; scheme {spec.scheme} of {spec.dtype} has one" if isinstance(scheme, Affine) else ""
        )
    if type(scheme) is Codebook:
        return f"zero_point is given; {spec.dtype} is a table of values, which has none"
    low, high = scheme.zero_points(spec)
    wrong = zero_point[(zero_point < low) | (zero_point > high)]
    if wrong.numel():
        allowed = f"in [{low:g}, {high:g}]" if low < high else f"{low:g}"
        return (
            f"zero_point must be {allowed} for {spec.dtype} with scheme {spec.scheme}, got {wrong.flatten()[0].item()}"
        )
    return ""


def stored_problem(packed: Tensor, params: QuantParams, spec: TensorSpec, shape: Sequence[int]) -> str:
    """Return why tensors that were stored are not those of a quantized tensor of this spec and shape; or nothing.

    The codes themselves are checked by `codes_problem`.
    """
    size = packed_size(prod(shape), spec.dtype.bits)
    if packed.dtype != torch.uint8 or packed.shape != (size,):
        return f"{spec.dtype} codes of shape {tuple(shape)} take {size} bytes, got {_kind(packed)}"
    scale_shape = scheme_of(spec).scale_shape(shape, spec)
    allowed = dict.fromkeys((stored_dtype(spec), torch.float32))  # a scale that was learned is fp32
    if params.scale.shape != scale_shape or params.scale.dtype not in allowed:
        return f"scale must be {_names(allowed)} of shape {scale_shape} for {spec}, got {_kind(params.scale)}"
    zero_point = params.zero_point
    if zero_point is not None and (zero_point.dtype != torch.int32 or zero_point.shape not in ((), scale_shape)):
        return f"zero_point must be int32 of shape () or {scale_shape} for {spec}, got {_kind(zero_point)}"
    return params_problem(params, spec)


def codes_problem(codes: Tensor, spec: TensorSpec) -> str:
    """Return why codes (int8 or uint8) are not allowed by `spec`, with the first such code; empty if they are."""
    wrong = codes[(codes < spec.qmin) | (codes > spec.qmax)]
    return f"codes must be in [{spec.qmin}, {spec.qmax}] for {spec}, got {wrong[0].item()}" if wrong.numel() else ""


def has_unused_codes(spec: TensorSpec) -> bool:
    """Return whether its bits hold more codes than the spec allows."""
    return spec.qmax - spec.qmin + 1 < 1 << spec.dtype.bits


def _kind(tensor: Tensor) -> str:
    return f"{_names([tensor.dtype])} of shape {tuple(tensor.shape)}"


def _names(dtypes: Sequence[torch.dtype] | dict[torch.dtype, None]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
