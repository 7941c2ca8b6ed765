"""The values of a packed weight as whole numbers, which are what the kernels multiply."""

from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.numerics import Affine, Codebook, QuantizedTensor, scheme_of
from subbyte.spec import TensorSpec

LARGEST_TABLE = 16
_UNITS = tuple(2.0**-power for power in range(8))  # scaling by one of them rounds nothing


@dataclass(frozen=True)
class Grid:
    """How codes stand for whole numbers: a code, less `lowest_code`, is itself or an entry of `values`.

    A grid value of the data type is `(number - zero) * unit`.

    Args:
        lowest_code: from which codes are counted.
        values: bytes that codes stand for, or None.
        zero: the number that is 0; None where each channel or group has a zero point.
        unit: in grid values.
        is_exact: whether that is so, and not the nearest of 255 steps.
    """

    lowest_code: int
    values: tuple[int, ...] | None
    zero: int | None
    unit: float
    is_exact: bool

    @classmethod
    def of(cls, spec: TensorSpec) -> "Grid | None":
        """Of a weight with this spec; None where no kernel multiplies such numbers."""
        if spec.dtype.kind == "integer":
            return cls(spec.dtype.qmin, None, None, 1.0, True) if isinstance(scheme_of(spec), Affine) else None
        values = spec.dtype.values
        if values is None or len(values) > LARGEST_TABLE or type(scheme_of(spec)) is not Codebook:
            return None
        for unit in _UNITS:
            steps = [value / unit for value in values]
            if all(step.is_integer() for step in steps) and max(steps) - min(steps) <= 255:
                lowest = int(min(steps))
                return cls(0, tuple(int(step) - lowest for step in steps), -lowest, unit, True)
        unit = max(map(abs, values)) / 127
        return cls(0, tuple(round(value / unit) + 128 for value in values), 128, unit, False)

    def numbers(self, tensor: QuantizedTensor) -> Tensor:
        """Codes from 0, uint8."""
        return (tensor.codes.to(torch.int16) - self.lowest_code).to(torch.uint8)

    def zero_point(self, tensor: QuantizedTensor) -> Tensor:
        """In the domain of the numbers, int32, of the scale's shape or [1]."""
        if self.zero is not None:
            return torch.tensor([self.zero], dtype=torch.int32)
        zero_point = tensor.params.zero_point
        return (torch.zeros(1, dtype=torch.int32) if zero_point is None else zero_point) - self.lowest_code

    def table(self) -> Tensor | None:
        """`values` as a tensor."""
        return None if self.values is None else torch.tensor(self.values, dtype=torch.uint8)
