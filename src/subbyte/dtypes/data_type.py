"""What a data type is: a finite set of representable values, or a float that passes through."""

import ctypes
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch

from subbyte.errors import DataTypeError, nearest, quoted, refuses_misspelt

Kind = Literal["integer", "codebook", "float"]

MAX_BITS = 8
_MAGNITUDES = (2.0**-20, 2.0**20)  # sums of products, and the product of the scales that undo them, stay inside fp32
_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FLOATS = {name: 8 * kind.itemsize for name, kind in _TORCH.items()}
_HALF = 16  # bits
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@refuses_misspelt(DataTypeError)
@dataclass(frozen=True)
class DataType:
    """A set of representable values and the codes that stand for them. Knows nothing of scales.

    Integer: give `bits` (1..8) and `signed`; the range is the exact two's-complement or unsigned
    one (int4 is -8..7). `narrow` drops the lowest value of a signed range (int4 narrow: -7..7).
    Codebook: give `values`, the largest of a magnitude of 2^-20 to 2^20; code i stands for `values[i]`, in the order
    given; `bits` may be left out.
    -0.0 and +0.0 are one value: its first code is the one that is written.
    Float: `fp32`, `bf16` and `fp16` are built in; tensors of these types are not quantized.

    Args:
        name: letters, digits and underscores, starting with a letter.
        bits: bits that one code takes.
        signed: of an integer range.
        narrow: of a signed integer range.
        values: of a codebook, finite and distinct numbers, in a list, tuple, range, array or tensor of one axis.
        algorithm: the calibration algorithm used where a request names none.

    Raises:
        DataTypeError: the description contradicts itself; the message says why.
    """

    name: str
    bits: int = 0
    signed: bool | None = None
    narrow: bool = False
    values: tuple[float, ...] | None = None
    algorithm: str = "minmax"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise self._error("a name is letters, digits and underscores, starting with a letter")
        if not isinstance(self.bits, int) or isinstance(self.bits, bool):
            raise self._error(f"bits must be a whole number, not {quoted(self.bits)}")
        if not isinstance(self.algorithm, str):
            raise self._error(f"algorithm must be a name, not {quoted(self.algorithm)}")
        if self.values is not None:
            self._check_codebook()
        elif self.narrow or not self.is_float:
            self._check_integer()

    def _error(self, reason: str) -> DataTypeError:
        return DataTypeError(f"data type {quoted(self.name)}: {reason}")

    def _check_integer(self) -> None:
        if self.bits == 0:
            raise self._error("it has no values: give bits and signed, or a table of values")
        if self.narrow and not self.signed:
            raise self._error("narrow belongs to signed integer types")
        if not 1 <= self.bits <= MAX_BITS:
            hint = f"; the float types are {', '.join(_FLOATS)}" if self.bits in _FLOATS.values() else ""
            raise self._error(f"bits must be 1..{MAX_BITS}, not {self.bits}{hint}")
        if not isinstance(self.signed, bool) or not isinstance(self.narrow, bool):
            raise self._error("an integer type needs signed: true or false (and narrow, if given, the same)")
        if self.narrow and self.bits == 1:
            raise self._error("a narrow 1-bit range holds only the value 0")

    def _check_codebook(self) -> None:
        if self.signed is not None or self.narrow:
            raise self._error("signed and narrow describe integer types; a table of values needs neither")
        table = self._table()
        if not table:
            raise self._error("it has no values")
        needed = (len(table) - 1).bit_length()
        if needed > MAX_BITS:
            raise self._error(f"{len(table):,} values do not fit in {MAX_BITS} bits; give at most {1 << MAX_BITS}")
        # Tensors hold values in fp32: two that are one there would be one value with two codes.
        single = [ctypes.c_float(value).value for value in table]
        if not all(math.isfinite(value) for value in single):
            raise self._error("every value must be finite, in fp32")
        if len(single) == 1 or not any(single):
            raise self._error("it needs at least two values, one of them not zero")
        largest = max(map(abs, single))
        if not _MAGNITUDES[0] <= largest <= _MAGNITUDES[1]:
            raise self._error(
                f"its largest magnitude is {largest:g}, and products of such values leave fp32; divide the table by "
                "it, as scales follow the data (allowed: 2^-20 to 2^20)"
            )
        # 0.0 == -0.0, so the two zeros of a sign-magnitude format count once here.
        others = [value for value in single if value != 0.0]
        zeros = [math.copysign(1.0, value) for value in single if value == 0.0]
        repeated = sorted({value for value in others if others.count(value) > 1})
        if repeated or len(zeros) != len(set(zeros)):
            raise self._error(f"a value stands twice in the table: {quoted(repeated or [0.0])}")
        if self.bits not in (0,) and not needed <= self.bits <= MAX_BITS:
            raise self._error(f"{len(table)} values need {needed} to {MAX_BITS} bits, not {self.bits}")
        object.__setattr__(self, "values", table)
        object.__setattr__(self, "bits", self.bits or needed)

    def _table(self) -> tuple[float, ...]:
        values: Any = self.values
        if hasattr(values, "tolist"):  # an array or a tensor
            values = values.tolist()
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise self._error(f"values must be a list of numbers, not {quoted(self.values)}")
        for value in values:
            if not isinstance(value, Real) or isinstance(value, bool):
                raise self._error(f"values must be numbers, and {quoted(value)} is none")
        try:
            return tuple(float(value) for value in values)
        except OverflowError as error:
            raise self._error(f"values must be numbers ({error})") from None

    @classmethod
    def from_dict(cls, name: str, fields: Mapping[str, Any]) -> "DataType":
        """Build from one entry of a capability file's `dtypes`.

        Raises:
            DataTypeError: a key is unknown, or as for the constructor.
        """
        allowed = ("bits", "signed", "narrow", "values", "algorithm")
        if not isinstance(fields, Mapping):
            raise DataTypeError(f"data type {quoted(name)}: expected {{bits: ..., signed: ...}} or {{values: [...]}}")
        for key in fields:
            if key not in allowed:
                raise DataTypeError(
                    f"data type {quoted(name)}: unknown key {quoted(key)}{nearest(key, allowed)} "
                    f"(allowed: {', '.join(allowed)})"
                )
        return cls(name, **fields)

    def to_dict(self) -> dict[str, Any]:
        """The fields that `from_dict` needs to build an equal type."""
        if self.kind == "codebook":
            return {"bits": self.bits, "values": list(self.values or ()), "algorithm": self.algorithm}
        if self.kind == "float":
            return {"bits": self.bits}
        return {"bits": self.bits, "signed": self.signed, "narrow": self.narrow, "algorithm": self.algorithm}

    @property
    def kind(self) -> Kind:
        if self.values is not None:
            return "codebook"
        return "float" if self.signed is None and _FLOATS.get(self.name) == self.bits else "integer"

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        """Whether it is a float type of 16 bits."""
        return self.is_float and self.bits == _HALF

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of a float type, PyTorch's name for it."""
        return _TORCH[self.name]

    @property
    def qmin(self) -> int:
        """The smallest code: of an integer type its smallest value, of a codebook 0."""
        return -(1 << (self.bits - 1)) + self.narrow if self.signed else 0

    @property
    def qmax(self) -> int:
        """The largest code: of an integer type its largest value, of a codebook its last index."""
        if self.values is not None:
            return len(self.values) - 1
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def max_magnitude(self) -> float:
        """The largest |value|."""
        if self.values is not None:
            return max(abs(value) for value in self.values)
        return float(max(abs(self.qmin), abs(self.qmax)))

    @property
    def has_integer_values(self) -> bool:
        """Whether every value is a whole number, so that sums of products are exact."""
        return self.values is None or all(value.is_integer() for value in self.values)

    def __str__(self) -> str:
        return self.name
