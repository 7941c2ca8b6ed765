"""Quantize, dequantize, fake-quantize: pure functions of a tensor, its parameters and a spec."""

from typing import Any

import torch
from torch import Tensor

from subbyte.errors import ConfigError
from subbyte.kernels.operator import runs_native
from subbyte.kernels.quantize import affine_quantize, affine_quantize_pack
from subbyte.numerics.packing import pack
from subbyte.numerics.schemes import affine_arguments, is_built_in_affine, scheme_of
from subbyte.spec import QuantParams, TensorSpec

# Far above the rounding error of a grid value times its scale (2^-24 of up to 256 steps), far below a step.
_SLACK = 1.0001


def code_dtype(spec: TensorSpec) -> torch.dtype:
    """The torch dtype that holds codes: int8 for a signed type, else uint8."""
    return torch.int8 if spec.dtype.qmin < 0 else torch.uint8


def quantize(x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
    """Codes of `x`.

    Args:
        x: fp32, bf16 or fp16, any shape and memory format.
        params: scale and zero point in the shapes that QuantParams tells.
        spec: dtype, scheme, granularity.

    Returns:
        int8 or uint8, of x's shape, every code inside spec.qmin..spec.qmax.

    Raises:
        ConfigError: the parameters do not fit the tensor and the granularity.
    """
    check_params(x.shape, params, spec)
    scheme, x = scheme_of(spec), x.float()
    if is_built_in_affine(scheme) and runs_native(x):
        return affine_quantize(x, *affine_arguments(params, spec), signed=spec.dtype.qmin < 0)
    return scheme.quantize(x, params, spec).to(code_dtype(spec))


def quantize_pack(x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
    """`pack(quantize(x))`: the codes as a dense stream, in row-major order.

    Raises:
        ConfigError: the parameters do not fit the tensor and the granularity.
    """
    check_params(x.shape, params, spec)
    values = x.float()
    if not (is_built_in_affine(scheme_of(spec)) and runs_native(values)):
        return pack(quantize(x, params, spec), spec.dtype.bits)
    signed, bits = spec.dtype.qmin < 0, spec.dtype.bits
    return affine_quantize_pack(values, *affine_arguments(params, spec), bits=bits, signed=signed)


def dequantize(codes: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
    """Values (fp32, of the shape of `codes`): grid value times scale."""
    scheme = scheme_of(spec)
    return scheme.grid(codes, params, spec) * scheme.scale(params, codes.shape, spec)


def fake_quantize(x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
    """`dequantize(quantize(x))` in x's dtype, with the straight-through gradient.

    The gradient passes where rounding leaves the code in the range, which is half a step further out than its ends, and
    is zero where it was clipped (Bengio et al., 2013, and the clipped form of Hubara et al., 2016), as that of
    `torch.fake_quantize_per_tensor_affine`.
    """
    return _StraightThrough.apply(x, params, spec)  # type: ignore[no-any-return,no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        scheme = scheme_of(spec)
        scale = scheme.scale(params, x.shape, spec)
        snapped = scheme.snap(x.float(), params, spec) * scale
        # At a tie the distance is the reach itself, give or take the rounding of snapped.
        ctx.save_for_backward((x.float() - snapped).abs() <= scale * (scheme.reach(spec) * _SLACK))
        return snapped.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None


def check_params(shape: torch.Size, params: QuantParams, spec: TensorSpec) -> None:
    """Refuse parameters that do not fit.

    Raises:
        ConfigError: the scale's shape is not the one that the granularity implies.
    """
    scheme = scheme_of(spec)
    expected = scheme.scale_shape(shape, spec)
    if tuple(params.scale.shape) != expected and params.scale.numel() != scheme.scales_per_block:
        raise ConfigError(
            f"a tensor of shape {tuple(shape)} {spec.granularity} needs a scale of shape {expected}, "
            f"not {tuple(params.scale.shape)}"
        )
