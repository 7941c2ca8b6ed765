"""Dense storage: n codes of b bits in ceil(n * b / 8) bytes.

Code i takes bits [i*b, (i+1)*b) of the byte stream, low bits first; negative codes are two's complement.
"""

import torch
from torch import Tensor

from subbyte.errors import ConfigError
from subbyte.kernels.packing import pack_codes, packed_size, unpack_codes

__all__ = ["pack", "packed_size", "unpack"]


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
    if codes.numel():
        low, high = torch.aminmax(codes)
        if int(low) < -(1 << (bits - 1)) or int(high) >= 1 << bits:
            raise ConfigError(f"codes {int(low)}..{int(high)} do not fit in {bits} bits")
    narrow = codes if codes.dtype in (torch.uint8, torch.int8) else codes.to(torch.int16).to(torch.uint8)
    return pack_codes(narrow, bits)


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
    return unpack_codes(packed, bits, count, signed)


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ConfigError(f"codes take 1..8 bits, not {bits}")
