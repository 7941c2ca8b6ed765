"""A convolution of two quantized values whose scales are learned, as one node of autograd."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from subbyte.kernels import quantize as kernels
from subbyte.kernels.once import differentiable_once
from subbyte.numerics.learned import Learned, Way


class Geometry(NamedTuple):
    """How a convolution moves over its input: one number for each dimension, and the number of groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def learned_convolution(x: Learned, weight: Learned, geometry: Geometry) -> Tensor:
    """The convolution of two quantized values, without bias, and with the gradients of both that are asked for.

    The quantized values are made again on the way back rather than kept, and the gradient of x is written over the one
    of its quantized value, which nothing else sees.

    Args:
        x: of fp32 on a CPU, [samples, channels, *places].
        weight: likewise, [outputs, channels / groups, *kernel].
        geometry: of the convolution.
    """
    parts = [(part.grid, part.factor) for part in (x, weight)]
    tensors = (x.x, x.scale, x.zero_point, weight.x, weight.scale, weight.zero_point)
    values: Tensor = _LearnedConvolution.apply(parts, geometry, *tensors)  # type: ignore[no-untyped-call]
    return values


_NONE = (None, None, None)


class _LearnedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: list[tuple[kernels.Grid, float]], geometry: Geometry, *tensors: Tensor) -> Tensor:
        (x, scale, zero, w, w_scale, w_zero), ((grid, _), (w_grid, _)) = tensors, parts
        code, w_code = kernels.nearest_code(zero, *grid[:2]), kernels.nearest_code(w_zero, *w_grid[:2])
        ctx.save_for_backward(x, scale, code, w, w_scale, w_code)
        ctx.ways, ctx.geometry = [Way.of(x, zero, *parts[0]), Way.of(w, w_zero, *parts[1])], geometry
        values = kernels.affine_fake_quantize(x, scale, code, *grid)
        weight = kernels.affine_fake_quantize(w, w_scale, w_code, *w_grid)
        stride, padding, dilation, groups = geometry
        return torch.convolution(values, weight, None, stride, padding, dilation, False, (0,), groups)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once, as checkpointing wants it
        of_x, of_weight = saved[:3], saved[3:]
        way, weight_way = ctx.ways
        stride, padding, dilation, groups = ctx.geometry
        values = kernels.affine_fake_quantize(*of_x, *way.grid)
        weight = kernels.affine_fake_quantize(*of_weight, *weight_way.grid)
        asked = any(ctx.needs_input_grad[2:5]), any(ctx.needs_input_grad[5:])
        gradient, weight_gradient, _ = torch.ops.aten.convolution_backward(
            gradients[0], values, weight, None, stride, padding, dilation, False, (0,), groups, (*asked, False)
        )
        back = way.back_over(gradient, *of_x) if asked[0] else _NONE
        return None, None, *back, *(weight_way.back_over(weight_gradient, *of_weight) if asked[1] else _NONE)
