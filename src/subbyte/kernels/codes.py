"""What the products take as x: floats that they quantize, or codes."""

import torch
from torch import Tensor

from subbyte.errors import KernelError

X_DTYPES = (torch.float32, torch.uint8, torch.int8)


def codes_of_x(x: Tensor, scale: Tensor, zero_point: Tensor, bounds: tuple[int, int]) -> Tensor:
    """The codes of x, float64: `clamp(round(x / scale) + zero_point, low, high)` of floats; a NaN stays one.

    Raises:
        KernelError: x is codes, and some are not between the bounds.
    """
    low, high = bounds
    if x.dtype == torch.float32:
        return torch.clamp(torch.round(x / scale) + zero_point.double(), low, high)
    if not bool(((x.int() >= low) & (x.int() <= high)).all()):
        raise KernelError("x has codes that are not between the lowest and the highest")
    return x.double()
