"""A tensor held as packed codes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from subbyte.errors import CheckpointError, ConfigError
from subbyte.kernels.embedding import embedding_codes
from subbyte.numerics.packing import packed_size, unpack
from subbyte.numerics.param_checks import codes_problem, has_unused_codes, stored_problem
from subbyte.numerics.quantize import dequantize, quantize_pack
from subbyte.numerics.schemes import Codebook, is_built_in_affine, scheme_of
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
        for rows, row_params in _pieces(x.shape, params):
            piece = quantize_pack(x.detach()[rows] if x.ndim else x.detach(), row_params, spec)
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

        Only those rows are unpacked where each row begins on a byte, and always of the built-in schemes.

        Raises:
            IndexError: an index is out of range; none counts from the end.
        """
        if len(self.shape) == 2 and (is_built_in_affine(scheme_of(self.spec)) or self._is_codebook):
            return self._looked_up(index.reshape(-1).long()).view(*index.shape, self.shape[1])
        bits, row = self.spec.dtype.bits, prod(self.shape[1:])
        if row * bits % 8:
            codes = self.codes.index_select(0, index.reshape(-1))
        else:
            packed = self.packed.view(self.shape[0], -1).index_select(0, index.reshape(-1)).reshape(-1)
            codes = unpack(packed, bits, index.numel() * row, signed=self.spec.dtype.qmin < 0)
        codes = codes.view(-1, *self.shape[1:])
        values = dequantize(codes, _params_of(self.params, self.shape, index.reshape(-1)), self.spec)
        return values.view(*index.shape, *self.shape[1:])

    @property
    def _is_codebook(self) -> bool:
        return type(scheme_of(self.spec)) is Codebook

    def _looked_up(self, index: Tensor) -> Tensor:
        params, dtype = self.params, self.spec.dtype
        rows, columns = self.shape
        scale, zero_point = params.scale.float(), params.zero_point
        none = torch.empty(0, dtype=torch.int32, device=scale.device)
        zero_point = none if zero_point is None else zero_point.expand(scale.shape)
        values = none.float()
        if self._is_codebook:
            listed = dtype.values or ()
            values = torch.tensor((*listed, *[0.0] * ((1 << dtype.bits) - len(listed))), device=scale.device)
        size = min(self.spec.granularity.group_size or columns, columns)
        numbers = (dtype.bits, dtype.qmin < 0, rows, columns, size)
        try:
            return embedding_codes(index, self.packed, scale, zero_point, values, *numbers)
        except RuntimeError as error:
            if "out of range" in str(error):
                raise IndexError(str(error)) from None
            raise

    def pieces(self) -> Iterator[tuple[slice, "QuantizedTensor"]]:
        """The same tensor, a few rows at a time, for work that should not unpack it whole."""
        row_bits = prod(self.shape[1:]) * self.spec.dtype.bits
        for rows, params in _pieces(self.shape, self.params):
            if rows == slice(None):
                yield rows, self
                continue
            count = len(range(*rows.indices(self.shape[0])))
            start = rows.start * row_bits // 8
            packed = self.packed[start : start + (count * row_bits + 7) // 8]
            yield rows, QuantizedTensor(packed, params, self.spec, torch.Size((count, *self.shape[1:])))

    def to(self, device: torch.device | str) -> "QuantizedTensor":
        """The same on another device.

        Raises:
            ConfigError: a dtype is given: codes keep theirs.
        """
        if isinstance(device, torch.dtype):
            raise ConfigError(f"a QuantizedTensor keeps its codes; take .dequantize().to({device})")
        return replace(self, packed=self.packed.to(device), params=self.params.to(device))

    def tensors(self) -> dict[str, Tensor]:
        """What to store, by name; `from_tensors` is the way back."""
        stored = {"packed": self.packed, "scale": self.scale}
        return stored if self.zero_point is None else stored | {"zero_point": self.zero_point}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], spec: TensorSpec, shape: torch.Size) -> "QuantizedTensor":
        """Build from what `tensors` gave.

        Raises:
            CheckpointError: a part is missing, or has a dtype, a shape or values that the spec does not allow.
        """
        try:
            packed, scale = tensors["packed"], tensors["scale"]
        except KeyError as error:
            raise CheckpointError(f"a quantized tensor lacks its {error}") from None
        params = QuantParams(scale, tensors.get("zero_point"))
        problem = stored_problem(packed, params, spec, shape)
        if problem:
            raise CheckpointError(problem)
        stored = cls(packed, params, spec, shape)
        for _, piece in stored.pieces() if has_unused_codes(spec) else ():
            problem = codes_problem(piece.codes, spec)
            if problem:
                raise CheckpointError(problem)
        return stored

    def __repr__(self) -> str:
        return f"QuantizedTensor({tuple(self.shape)}, {self.spec}, {self.nbytes} bytes)"


def _pieces(shape: torch.Size, params: QuantParams) -> list[tuple[slice, QuantParams]]:
    """Rows of a tensor, with the parameters of those rows, in pieces that begin on a byte of the stream."""
    size, ndim = prod(shape), len(shape)
    # Groups that run along the rows cannot be cut; nor can what has no rows.
    whole = ndim == 0 or (params.scale.ndim >= ndim and params.scale.shape[0] not in (1, shape[0]))
    if whole or size <= _CHUNK:
        return [(slice(None), params)]
    rows = max(_CHUNK // (size // shape[0]) // 8, 1) * 8
    cuts = [slice(start, start + rows) for start in range(0, shape[0], rows)]
    return [(cut, _params_of(params, shape, cut)) for cut in cuts]


def _params_of(params: QuantParams, shape: torch.Size, rows: slice | Tensor) -> QuantParams:
    """The parameters of some rows: shared ones, or those of each row."""

    def of(param: Tensor) -> Tensor:
        return param[rows] if param.ndim >= len(shape) and param.shape[0] == shape[0] > 1 else param

    return QuantParams(of(params.scale), None if params.zero_point is None else of(params.zero_point))
