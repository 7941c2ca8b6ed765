"""What operators on packed codes refuse, where PyTorch runs them."""

import torch
from torch import Tensor

from subbyte.errors import KernelError


def check_packed(weight: Tensor, bits: int, size: int) -> None:
    """The packed weight takes `size` bytes, its codes 1 to 8 bits.

    Raises:
        KernelError: not so.
    """
    if not 1 <= bits <= 8:
        raise KernelError(f"codes take 1..8 bits, not {bits}")
    if weight.dtype != torch.uint8 or weight.shape != (size,):
        raise KernelError(f"the packed weight takes {size} bytes, uint8")


def check_codes_of_weight(weight: Tensor, values: Tensor, bits: int, size: int) -> None:
    """The packed weight takes `size` bytes; a table of values is 16 bytes.

    Raises:
        KernelError: not so.
    """
    check_packed(weight, bits, size)
    if values.numel() not in (0, 16) or values.dtype != torch.uint8 or (values.numel() and bits > 4):
        raise KernelError("a table of values is 16 bytes, for codes of at most 4 bits")


def check_codes_of_x(scale: Tensor, zero_point: Tensor, low: int, high: int, rows: int) -> None:
    """There is one positive scale, or one for each row, and zero points that are codes of 8 bits.

    Raises:
        KernelError: not so.
    """
    if scale.shape not in ((1,), (rows,)) or zero_point.shape != scale.shape:
        raise KernelError("the scale and the zero point of x are one, or one for each row")
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise KernelError("the scale of x is no positive number")
    if not (-128 <= low < high <= 255 and high - low <= 255):
        raise KernelError("codes of x take 8 bits")
    if not bool(((zero_point >= low) & (zero_point <= high)).all()):
        raise KernelError("the zero point of x is no code")


def check_scale_of_weight(scale: Tensor) -> None:
    """Scales are finite.

    Raises:
        KernelError: not so.
    """
    if not bool(scale.isfinite().all()):
        raise KernelError("a scale of the weight is not finite")
