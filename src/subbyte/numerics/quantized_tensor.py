"""A tensor held as packed codes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.numerics.packing import pack, packed_size, unpack
from subbyte.numerics.quantize import dequantize, quantize
from subbyte.numerics.schemes import scheme_of
from subbyte.spec import QuantParams, TensorSpec

# Elements quantized at once; a multiple of 8 keeps every piece of the stream on a byte.
_CHUNK = 1 << 21


@dataclass(frozen=True)
class QuantizedTensor:
    """Packed codes, their scale and zero point, and the spec that says what they mean.

    Args:
        packed: uint8, one axis; codes in row-major order, see `pack`.
        params: scale and zero point.
        spec: dtype, scheme, granularity.
        shape: of the tensor it stands for.
    """

    packed: Tensor
    params: QuantParams
    spec: TensorSpec
    shape: torch.Size

    @classmethod
    def from_float(cls, x: Tensor, params: QuantParams, spec: TensorSpec) -> "QuantizedTensor":
        """Quantize and pack, in pieces: extra memory stays far below the tensor's own."""
        packed = torch.empty(packed_size(x.numel(), spec.dtype.bits), dtype=torch.uint8, device=x.device)
        start = 0
        for rows, row_params in _pieces(x.detach(), params):
            piece = pack(quantize(rows, row_params, spec), spec.dtype.bits)
            packed[start : start + piece.numel()] = piece
            start += piece.numel()
        return cls(packed, params, spec, x.shape)

    @property
    def codes(self) -> Tensor:
        """The codes, unpacked: int8 or uint8, of `shape`."""
        signed = self.spec.dtype.qmin < 0
        return unpack(self.packed, self.spec.dtype.bits, prod(self.shape), signed=signed).view(self.shape)

    @property
    def scale(self) -> Tensor:
        return self.params.scale

    @property
    def zero_point(self) -> Tensor | None:
        return self.params.zero_point

    @property
    def device(self) -> torch.device:
        return self.packed.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that `dequantize` gives."""
        return torch.float32

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        zero_point = self.zero_point
        return self.packed.nbytes + self.scale.nbytes + (0 if zero_point is None else zero_point.nbytes)

    def numel(self) -> int:
        return prod(self.shape)

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def grid(self) -> Tensor:
        """Grid values (fp32, of `shape`): code minus zero point, or table entry."""
        return scheme_of(self.spec).grid(self.codes, self.params, self.spec)

    def dequantize(self) -> Tensor:
        """The values it stands for: fp32, of `shape`."""
        return dequantize(self.codes, self.params, self.spec)

    def rows(self, index: Tensor) -> Tensor:
        """The values of some rows (fp32, [*index, ...]) of a table with at most one scale per row and group.

        Only those rows are unpacked where each row begins on a byte.
        """
        bits, row = self.spec.dtype.bits, prod(self.shape[1:])
        if row * bits % 8:
            codes = self.codes[index]
        else:
            packed = self.packed.view(self.shape[0], -1)[index.reshape(-1)].reshape(-1)
            codes = unpack(packed, bits, index.numel() * row, signed=self.spec.dtype.qmin < 0)
        codes = codes.view(-1, *self.shape[1:])
        values = dequantize(codes, self._params_of(index.reshape(-1)), self.spec)
        return values.view(*index.shape, *self.shape[1:])

    def _params_of(self, index: Tensor) -> QuantParams:
        def pick(param: Tensor | None) -> Tensor | None:
            by_row = param is not None and param.ndim == self.ndim and param.shape[0] == self.shape[0]
            return param[index] if by_row and param is not None else param

        scale = pick(self.scale)
        assert scale is not None
        return QuantParams(scale, pick(self.zero_point))

    def to(self, device: torch.device | str) -> "QuantizedTensor":
        return replace(self, packed=self.packed.to(device), params=self.params.to(device))

    def tensors(self) -> dict[str, Tensor]:
        """What to store, by name; `from_tensors` is the way back."""
        stored = {"packed": self.packed, "scale": self.scale}
        return stored if self.zero_point is None else stored | {"zero_point": self.zero_point}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], spec: TensorSpec, shape: torch.Size) -> "QuantizedTensor":
        """Build from what `tensors` gave.

        Raises:
            CheckpointError: a part is missing or has the wrong size.
        """
        try:
            packed, scale = tensors["packed"], tensors["scale"]
        except KeyError as error:
            raise CheckpointError(f"a quantized tensor lacks its {error}") from None
        expected = packed_size(prod(shape), spec.dtype.bits)
        if packed.dtype != torch.uint8 or packed.numel() != expected:
            raise CheckpointError(
                f"{spec.dtype} codes of shape {tuple(shape)} take {expected} bytes, not {packed.numel()}"
            )
        scheme = scheme_of(spec)
        if scale.numel() not in (scheme.scales_per_block, prod(scheme.scale_shape(shape, spec))):
            raise CheckpointError(f"a scale of shape {tuple(scale.shape)} does not fit {tuple(shape)} {spec}")
        return cls(packed, QuantParams(scale, tensors.get("zero_point")), spec, shape)

    def __repr__(self) -> str:
        return f"QuantizedTensor({tuple(self.shape)}, {self.spec}, {self.nbytes} bytes)"


def _pieces(x: Tensor, params: QuantParams) -> list[tuple[Tensor, QuantParams]]:
    """Rows of x, with the parameters of those rows, in pieces that end on a byte of the stream."""
    if x.ndim == 0 or x.numel() <= _CHUNK:
        return [(x, params)]
    rows = max(_CHUNK // (x.numel() // x.shape[0]) // 8, 1) * 8

    def part(param: Tensor | None, start: int) -> Tensor | None:
        by_row = param is not None and param.ndim >= x.ndim and param.shape[0] == x.shape[0] > 1
        return param[start : start + rows] if by_row and param is not None else param

    def params_of(start: int) -> QuantParams:
        scale = part(params.scale, start)
        assert scale is not None
        return QuantParams(scale, part(params.zero_point, start))

    if params.scale.ndim >= x.ndim and params.scale.shape[0] not in (1, x.shape[0]):
        return [(x, params)]  # groups run along the rows
    return [(x[start : start + rows], params_of(start)) for start in range(0, x.shape[0], rows)]
