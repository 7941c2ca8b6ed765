"""Epilogues: what an operator does with its results while they are near, in place of an operator after it.

`t = y + residual`, `v = t < low ? low : t > high ? high : t`; the sum rounded by itself, a NaN staying one. Then v is
written as fp32; as bf16, the nearest, ties to even; as codes, by the formula of `affine_quantize`; or as bits, 1 where
v >= 0, as `sign_pack` writes them. A NaN has no code and is refused; its bit is 0.

Beside each operator with this in its arguments stands one named `..._fused`, which takes them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.operator import define
from subbyte.kernels.packing import pack_codes
from subbyte.kernels.quantize import affine_quantize

_FLOATS = (torch.float32, torch.bfloat16)
_CODES = (torch.uint8, torch.int8)
_SIGNS = 4
_DTYPES = (*_FLOATS, *_CODES, torch.uint8)  # of each output, by its number
_ARGUMENTS = (
    "Tensor residual, float low, float high, int output, Tensor y_scale, Tensor y_zero_point, int y_low, int y_high"
)
_COUNT = 8  # of these


@dataclass(frozen=True)
class Floats:
    """Results as floats.

    Args:
        dtype: fp32 or bf16.
    """

    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Codes:
    """Results as codes of 8 bits or fewer, one in each byte.

    Args:
        scale, zero_point: fp32 and int32, [1].
        low, high: the codes.
        dtype: uint8 or int8, which holds them.
    """

    scale: Tensor
    zero_point: Tensor
    low: int
    high: int
    dtype: torch.dtype = torch.uint8


@dataclass(frozen=True)
class Signs:
    """Results as bits, 1 where they are not negative: of rows [rows, ceil(outputs / 8)], of images [images, rows,
    columns, ceil(outputs / 8)], both uint8, each row's or pixel's outputs filled up to whole bytes with 0."""


@dataclass(frozen=True)
class Epilogue:
    """What is done with results.

    Args:
        residual: fp32, of the results' shape, added first; None: nothing is.
        low, high: what is below or above is set to them; `low=0.0` is a relu.
        output: as what they are written; None: fp32.
    """

    residual: Tensor | None = None
    low: float = -math.inf
    high: float = math.inf
    output: Floats | Codes | Signs | None = None

    def arguments(self, device: torch.device) -> tuple[Any, ...]:
        """As the operators take it; `device`: of x.

        Raises:
            KernelError: there is no output of that dtype.
        """
        residual = torch.empty(0, device=device) if self.residual is None else self.residual
        clamped = (residual, self.low, self.high)
        if isinstance(self.output, Codes):
            parameters = (self.output.scale, self.output.zero_point, self.output.low, self.output.high)
            return (*clamped, _number(self.output.dtype, _CODES), *parameters)
        dtype = self.output.dtype if isinstance(self.output, Floats) else torch.float32
        number = _SIGNS if isinstance(self.output, Signs) else _number(dtype, _FLOATS)
        nothing = torch.empty(0, device=device), torch.empty(0, dtype=torch.int32, device=device)
        return (*clamped, number, *nothing, 0, 0)


def _number(dtype: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> int:
    if dtype not in dtypes:
        raise KernelError(f"results are written as {' or '.join(map(str, dtypes))}, not {dtype}")
    return _DTYPES.index(dtype)


def define_fused(
    name: str,
    arguments: str,
    implementation: Callable[..., Any],
    shape: Callable[..., Any],
    on_gpu: Callable[..., Any] | None = None,
) -> None:
    """Define the operator `name`_fused, which takes an epilogue after the arguments of another.

    Args:
        name: of the other.
        arguments: of its schema.
        implementation, shape, on_gpu: as of the other for `define`; fp32 results.
    """
    define(
        f"{name}_fused({arguments}, {_ARGUMENTS}) -> Tensor",
        _followed(implementation),
        lambda *given: _shape(shape(*given[:-_COUNT]), given[-_COUNT + 3]),
        None if on_gpu is None else _followed(on_gpu),
    )


def _followed(implementation: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda *given: finished(implementation(*given[:-_COUNT]), *given[-_COUNT:])


def finished(
    y: Tensor,
    residual: Tensor,
    low: float,
    high: float,
    output: int,
    scale: Tensor,
    zero_point: Tensor,
    code_low: int,
    code_high: int,
) -> Tensor:
    """Results (fp32) with an epilogue in PyTorch functions, its arguments as `Epilogue.arguments` gives them.

    Raises:
        KernelError: something does not fit.
    """
    _check(0 <= output <= _SIGNS, "there is no such output")
    _check(low <= high, "the lower bound of a clamp is above the upper, or one of them is NaN")
    if residual.shape != (0,):
        _check(residual.dtype == torch.float32, "the residual must be float32")
        _check(residual.shape == y.shape, "the residual has another shape than the result; it is not broadcast")
        y = y + residual
    lowest, highest = (torch.tensor(bound, dtype=torch.float32, device=y.device) for bound in (low, high))
    y = torch.where(y < lowest, lowest, y)
    y = torch.where(y > highest, highest, y)
    _check_parameters(output, scale, zero_point, code_low, code_high)
    if output == _SIGNS:
        return _signs(y)
    if _DTYPES[output] in _FLOATS:
        return y.to(_DTYPES[output])
    return affine_quantize(y, scale, zero_point, code_low, code_high, 0, signed=_DTYPES[output] == torch.int8)


def _check_parameters(output: int, scale: Tensor, zero_point: Tensor, low: int, high: int) -> None:
    has_codes = output < _SIGNS and _DTYPES[output] in _CODES
    _check(
        scale.dtype == torch.float32 and zero_point.dtype == torch.int32, "the scale of y is fp32, its zero point int32"
    )
    _check(scale.numel() == zero_point.numel() == int(has_codes), "codes, and only they, have one scale of y")
    _check(not has_codes or low <= int(zero_point) <= high, "the zero point of y is no code")


def _signs(y: Tensor) -> Tensor:
    rows = y.movedim(1, -1)
    bits = torch.nn.functional.pad((rows >= 0).to(torch.uint8), (0, -rows.shape[-1] % 8))
    return pack_codes(bits.contiguous(), 1).view(*rows.shape[:-1], -(-rows.shape[-1] // 8))


def _shape(y: Tensor, output: int) -> Tensor:
    """An empty result; y: what it would be in fp32."""
    if output == _SIGNS:
        return y.new_empty(y.shape[0], *y.shape[2:], (y.shape[1] + 7) // 8, dtype=torch.uint8)
    return torch.empty_like(y, dtype=_DTYPES[output])


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise KernelError(message)
