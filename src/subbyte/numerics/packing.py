"""Dense storage: n codes of b bits in ceil(n * b / 8) bytes.

Code i takes bits [i*b, (i+1)*b) of the byte stream, low bits first; negative codes are two's complement.
"""

import torch
from torch import Tensor

from subbyte.errors import ConfigError

# Codes worked on at once: bounds temporary memory to a few tens of megabytes.
_CHUNK = 1 << 21


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take."""
    return (count * bits + 7) // 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack integer codes in row-major order.

    Args:
        codes: an integer tensor of any shape, codes in -2^(bits-1)..2^bits-1.
        bits: 1..8.

    Returns:
        uint8, one axis, ceil(n * bits / 8) bytes; unused bits of the last byte are 0.

    Raises:
        ConfigError: a code does not fit.
    """
    _check_bits(bits)
    flat = codes.reshape(-1)
    packed = torch.empty(packed_size(flat.numel(), bits), dtype=torch.uint8, device=codes.device)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        low, high = torch.aminmax(chunk)
        if int(low) < -(1 << (bits - 1)) or int(high) >= 1 << bits:
            raise ConfigError(f"codes {int(low)}..{int(high)} do not fit in {bits} bits")
        first = start * bits // 8
        piece = _pack_chunk(chunk, bits)
        packed[first : first + piece.numel()] = piece
    return packed


def unpack(packed: Tensor, bits: int, count: int, *, signed: bool) -> Tensor:
    """The first `count` codes of a packed stream.

    Args:
        packed: uint8, one axis.
        bits: 1..8.
        count: how many codes.
        signed: whether the highest bit of a code is its sign.

    Returns:
        int8 if signed, else uint8; one axis.

    Raises:
        ConfigError: the stream is shorter than `count` codes.
    """
    _check_bits(bits)
    if packed.dtype != torch.uint8 or packed.ndim != 1:
        raise ConfigError(f"packed codes are one axis of uint8, not {packed.dtype} of {packed.ndim} axes")
    if packed.numel() < packed_size(count, bits):
        raise ConfigError(
            f"{count} codes of {bits} bits take {packed_size(count, bits)} bytes; there are {packed.numel()}"
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


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ConfigError(f"codes take 1..8 bits, not {bits}")


def _pack_chunk(chunk: Tensor, bits: int) -> Tensor:
    """Eight codes make `bits` bytes: gather them in one 64-bit word, then cut the word into bytes."""
    unsigned = chunk.to(torch.uint8) if bits == 8 else chunk.to(torch.uint8) & ((1 << bits) - 1)
    if bits == 8:
        return unsigned
    padded = torch.nn.functional.pad(unsigned, (0, -chunk.numel() % 8)).view(-1, 8)
    word = padded[:, 0].long()
    for index in range(1, 8):
        word |= padded[:, index].long() << (index * bits)
    stream = torch.empty(word.numel(), bits, dtype=torch.uint8, device=chunk.device)
    for index in range(bits):
        stream[:, index] = ((word >> (8 * index)) & 0xFF).to(torch.uint8)
    return stream.view(-1)[: packed_size(chunk.numel(), bits)]


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
