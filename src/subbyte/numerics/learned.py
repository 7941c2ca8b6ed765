"""Fake-quantizing with a scale and a zero point that are learned."""

import torch
from torch import Tensor

from subbyte.errors import ConfigError
from subbyte.kernels import quantize as kernels
from subbyte.numerics.integer_first import as_dtype
from subbyte.numerics.schemes import is_built_in_affine, scheme_of
from subbyte.spec import TensorSpec


def learned_fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, spec: TensorSpec, factor: float = 1.0
) -> Tensor:
    """`(q - z) * s` with `q = clamp(round_half_even(x / s) + z, qmin, qmax)`, with gradients of x, s and z.

    With v = x / s, of each value that is not clipped dx = 1, ds = round(v) - v, dz = 0; of one that is, dx = 0,
    ds = q - z, dz = -s (LSQ, Esser et al., 2020; LSQ+, Bhalgat et al., 2020). `factor` is the
    1 / sqrt(n max(|qmin|, qmax)) by which LSQ multiplies the scale's gradient.

    Args:
        x: fp32, bf16 or fp16, any shape and memory format.
        scale: fp32, in the shape that QuantParams tells; positive.
        zero_point: one or of scale's shape; one of fp32 is rounded to the nearest code first, and learned straight
            through that; one of int32 is not learned.
        spec: an integer type of scheme `sym` or `asym`; its granularity.
        factor: of the scale's gradient.

    Returns:
        values of x's shape and dtype.

    Raises:
        ConfigError: the scheme is another one.
        RuntimeError: the parameters do not fit x, or a scale is not positive.
    """
    if not is_built_in_affine(scheme_of(spec)):
        raise ConfigError(f"a learned scale needs an integer type of scheme sym or asym, not {spec}")
    size = spec.granularity.group_size
    values = kernels.learned_fake_quantize(
        as_dtype(x, torch.float32), scale, zero_point, spec.qmin, spec.qmax, size, factor
    )
    return as_dtype(values, x.dtype)
