"""embedding_codes: rows of a packed table, looked up and dequantized; no other row is unpacked."""

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.checks import check_scale_of_weight
from subbyte.kernels.operator import define
from subbyte.kernels.packing import packed_size, unpack_codes


def embedding_codes(
    index: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    values: Tensor,
    bits: int,
    signed: bool,
    rows: int,
    columns: int,
    group_size: int,
) -> Tensor:
    """`y[i, k] = (code[index[i], k] - zero_point) * scale`, or `values[code] * scale`; each operation rounded in fp32.

    Args:
        index: int64 [n].
        packed: uint8, one axis: the codes of the table [rows, columns], row-major, as `pack_codes` gives them.
        scale: fp32 [rows, groups], or [1, groups] for all rows.
        zero_point: int32, the same shape; or empty: 0. It must be empty if `values` is given.
        values: fp32 [2^bits], the value of each code; or empty: each code is its own value.
        bits: of a code.
        signed: whether a code's highest bit is its sign.
        rows, columns: of the table.
        group_size: columns that share a scale; the last group may be shorter.

    Returns:
        fp32 [n, columns].

    Raises:
        RuntimeError: something does not fit, or an index is out of range; none counts from the end.
    """
    numbers = (bits, signed, rows, columns, group_size)
    y: Tensor = torch.ops.subbyte.embedding_codes(index, packed, scale, zero_point, values, *numbers)
    return y


def _embedding_codes(
    index: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    values: Tensor,
    bits: int,
    signed: bool,
    rows: int,
    columns: int,
    group_size: int,
) -> Tensor:
    if not 1 <= bits <= 8:
        raise KernelError(f"codes take 1..8 bits, not {bits}")
    if index.dtype != torch.int64 or index.ndim != 1:
        raise KernelError("the index has one axis, int64")
    if rows < 0 or columns <= 0 or group_size <= 0:
        raise KernelError("a table has columns, and groups hold something")
    groups = -(-columns // group_size)
    if packed.dtype != torch.uint8 or packed.numel() != packed_size(rows * columns, bits):
        raise KernelError("the packed table has another size")
    if scale.dtype != torch.float32 or scale.numel() not in (groups, rows * groups):
        raise KernelError("the scale does not fit the table")
    if zero_point.dtype != torch.int32 or zero_point.numel() not in (0, scale.numel()):
        raise KernelError("the zero point does not fit the scale")
    if values.dtype != torch.float32 or values.numel() not in (0, 1 << bits) or (values.numel() and signed):
        raise KernelError("a table of values has an entry for each code, counted from 0")
    if values.numel() and zero_point.numel():
        raise KernelError(
            f"a table of values has no zero points, got {zero_point.numel()}; pass an empty zero point, "
            "or subtract it from the values"
        )
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < rows):
        raise KernelError(f"an index is out of range: the table has {rows} rows")
    check_scale_of_weight(scale)
    codes = unpack_codes(packed.reshape(-1), bits, rows * columns, signed).view(rows, columns).index_select(0, index)
    numbers = values[codes.int()] if values.numel() else codes.float()
    if zero_point.numel():
        numbers = numbers - _of_rows(zero_point, index, groups, group_size, columns)
    return numbers * _of_rows(scale, index, groups, group_size, columns)


def _of_rows(x: Tensor, index: Tensor, groups: int, group_size: int, columns: int) -> Tensor:
    by_row = x.reshape(-1, groups)
    chosen = by_row if len(by_row) == 1 else by_row.index_select(0, index)
    return chosen.repeat_interleave(min(group_size, columns), 1)[:, :columns]


define(
    "embedding_codes(Tensor index, Tensor packed, Tensor scale, Tensor zero_point, Tensor values, int bits, "
    "bool signed, int rows, int columns, int group_size) -> Tensor",
    _embedding_codes,
    lambda index, packed, scale, *arguments: scale.new_empty(index.shape[0], arguments[-2]),
)
