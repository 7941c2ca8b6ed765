"""pack_codes, unpack_codes and sign_pack: codes of 1 to 8 bits as a dense stream.

Code i takes bits [i*b, (i+1)*b) of the byte stream, low bits first; unused bits of the last byte are 0.
"""

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.operator import define

# Codes worked on at once: bounds temporary memory to a few tens of megabytes.
_CHUNK = 1 << 21


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take."""
    return (count * bits + 7) // 8


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes (uint8 or int8, any shape, row-major) as a dense stream; what lies above `bits` bits is cut off."""
    packed: Tensor = torch.ops.subbyte.pack_codes(codes, bits)
    return packed


def unpack_codes(packed: Tensor, bits: int, count: int, signed: bool) -> Tensor:
    """The first `count` codes of a stream: int8 if signed, else uint8."""
    codes: Tensor = torch.ops.subbyte.unpack_codes(packed, bits, count, signed)
    return codes


def _pack_codes(codes: Tensor, bits: int) -> Tensor:
    _check(1 <= bits <= 8, f"codes take 1..8 bits, not {bits}")
    _check(codes.dtype in (torch.uint8, torch.int8), "codes must be uint8 or int8")
    flat = codes.reshape(-1).view(torch.uint8)
    packed = torch.empty(packed_size(flat.numel(), bits), dtype=torch.uint8, device=codes.device)
    for start in range(0, flat.numel(), _CHUNK):
        first = start * bits // 8
        piece = _pack_chunk(flat[start : start + _CHUNK], bits)
        packed[first : first + piece.numel()] = piece
    return packed


def _pack_chunk(chunk: Tensor, bits: int) -> Tensor:
    """Eight codes make `bits` bytes: gather them in one 64-bit word, then cut the word into bytes."""
    if bits == 8:
        return chunk
    padded = torch.nn.functional.pad(chunk & ((1 << bits) - 1), (0, -chunk.numel() % 8)).view(-1, 8)
    word = padded[:, 0].long()
    for index in range(1, 8):
        word |= padded[:, index].long() << (index * bits)
    stream = torch.empty(word.numel(), bits, dtype=torch.uint8, device=chunk.device)
    for index in range(bits):
        stream[:, index] = ((word >> (8 * index)) & 0xFF).to(torch.uint8)
    return stream.view(-1)[: packed_size(chunk.numel(), bits)]


def _unpack_codes(packed: Tensor, bits: int, count: int, signed: bool) -> Tensor:
    _check(1 <= bits <= 8, f"codes take 1..8 bits, not {bits}")
    _check(packed.dtype == torch.uint8 and packed.ndim == 1, "packed codes are one axis of uint8")
    _check(count >= 0, f"the count of codes is {count}")
    _check(
        packed_size(count, bits) <= packed.numel(),
        f"{count} codes of {bits} bits do not fit in {packed.numel()} bytes",
    )
    codes = torch.empty(count, dtype=torch.uint8, device=packed.device)
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        first = start * bits // 8
        codes[start : start + size] = _unpack_chunk(packed[first : first + packed_size(size, bits)], bits, size)
    if not signed:
        return codes
    shift = 8 - bits
    return (codes << shift).view(torch.int8) >> shift


def _unpack_chunk(stream: Tensor, bits: int, count: int) -> Tensor:
    if bits == 8:
        return stream
    padded = torch.nn.functional.pad(stream, (0, -stream.numel() % bits)).view(-1, bits)
    word = padded[:, 0].long()
    for index in range(1, bits):
        word |= padded[:, index].long() << (8 * index)
    codes = torch.empty(word.numel(), 8, dtype=torch.uint8, device=stream.device)
    mask = (1 << bits) - 1
    for index in range(8):
        codes[:, index] = ((word >> (index * bits)) & mask).to(torch.uint8)
    return codes.view(-1)[:count]


def _sign_pack(x: Tensor) -> Tensor:
    _check(x.dtype == torch.float32, "x must be float32")
    return _pack_codes((x >= 0).to(torch.uint8), 1)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise KernelError(message)


def _packed_shape(codes: Tensor, bits: int) -> Tensor:
    _check(1 <= bits <= 8, f"codes take 1..8 bits, not {bits}")
    return codes.new_empty(packed_size(codes.numel(), bits), dtype=torch.uint8)


define(
    "pack_codes(Tensor codes, int bits) -> Tensor",
    _pack_codes,
    _packed_shape,
)
define(
    "unpack_codes(Tensor packed, int bits, int count, bool signed) -> Tensor",
    _unpack_codes,
    lambda packed, bits, count, signed: packed.new_empty(count, dtype=torch.int8 if signed else torch.uint8),
)
define(
    "sign_pack(Tensor x) -> Tensor",
    _sign_pack,
    lambda x: x.new_empty(packed_size(x.numel(), 1), dtype=torch.uint8),
)
