"""What the gradients of sign share: a smooth function stands in for it on the way back."""

from abc import abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from subbyte.dtypes import DataType
from subbyte.spec import TensorSpec
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient


class SignGradient(Gradient):
    """Of `y = scale * sign(x)`, as if it were `scale * F(x / width)`: `dx = dy * scale * F'(x / width) / width`.

    F leads from -1 to +1, and what it is tells the subclasses apart. The scale is a constant on the way back: that of a
    weight is the mean of its magnitude (XNOR-Net, Rastegari et al., 2016, section 3.1), found anew in each step.

    Args:
        width: by what x is measured; at 1 it is the papers' own.
        standardized: of weights: `(w - mean) / deviation` of each output channel (axis 0) is what is quantized, so that
            their signs balance and all channels are alike (IR-Net, Qin et al., 2020, equation 8).
    """

    width: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    standardized: bool = False

    @abstractmethod
    def slope(self, x: Tensor, progress: Tensor | None) -> Tensor:
        """F'(x), value by value.

        Args:
            x: what is quantized, over width.
            progress: see Point.
        """

    def obstacle(self, spec: TensorSpec) -> str:
        return (
            ""
            if is_sign(spec.dtype)
            else "it stands for the slope of a sign; use a type of two values {-v, +v}, as bint1"
        )

    def reparametrized(self, weight: Tensor) -> Tensor:
        return standardized(weight) if self.standardized else weight

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        height = at.scale * (spec.dtype.max_magnitude / self.width)
        return Slopes(gradient * height * self.slope(at.x / self.width, at.progress))


def is_sign(dtype: DataType) -> bool:
    """Whether a type has the two values {-v, +v}, which tell no more than a sign."""
    values = dtype.values or ()
    return dtype.kind == "codebook" and len(values) == 2 and values[0] == -values[1]


def standardized(weight: Tensor) -> Tensor:
    """`(w - mean) / deviation` over all but the first axis; a channel of equal values, or of one, is nearly 0."""
    if weight.ndim < 2:
        return weight
    axes = tuple(range(1, weight.ndim))
    centred = weight - weight.mean(axes, keepdim=True)
    # The deviation of zeros has no gradient, and that of what rounding left of equal values no meaning: such channels
    # are not divided. Means of halves are summed in fp32, too.
    variance = centred.square().mean(axes, keepdim=True)
    rounding = 16 * torch.finfo(torch.float32).eps * weight.detach().abs().amax(axes, keepdim=True)
    is_flat = variance <= rounding.square()
    return centred / variance.masked_fill(is_flat, 1.0).sqrt()
