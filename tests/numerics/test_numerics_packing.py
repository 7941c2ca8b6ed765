"""Packing: the bit layout against a plain Python oracle, and the way back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.errors import ConfigError
from subbyte.numerics import pack, packed_size, unpack


def stream(codes: list[int], bits: int) -> list[int]:
    """Code i in bits [i*b, (i+1)*b), low bits first, one bit at a time."""
    packed = [0] * -(-len(codes) * bits // 8)
    for position in range(len(codes) * bits):
        bit = codes[position // bits] >> (position % bits) & 1
        packed[position // 8] |= bit << (position % 8)
    return packed


@st.composite
def codes_of_a_width(draw: st.DrawFn) -> tuple[list[int], int, bool]:
    bits, signed = draw(st.integers(1, 8)), draw(st.booleans())
    low = -(1 << (bits - 1)) if signed else 0
    codes = st.integers(low, low + (1 << bits) - 1)
    return draw(st.lists(codes, max_size=70)), bits, signed


@settings(deadline=None, max_examples=200)
@given(codes_of_a_width())
def test_layout_and_round_trip(case: tuple[list[int], int, bool]) -> None:
    codes, bits, signed = case
    dtype = torch.int8 if signed else torch.uint8
    packed = pack(torch.tensor(codes, dtype=dtype), bits)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == stream(codes, bits)
    back = unpack(packed, bits, len(codes), signed=signed)
    assert back.dtype == dtype
    assert back.tolist() == codes


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("signed", [True, False])
def test_every_code_of_every_width(bits: int, signed: bool) -> None:
    low = -(1 << (bits - 1)) if signed else 0
    codes = torch.arange(low, low + (1 << bits)).repeat(3)
    assert torch.equal(unpack(pack(codes, bits), bits, len(codes), signed=signed).long(), codes)


def test_any_shape_and_memory_format_is_packed_row_major() -> None:
    codes = torch.randint(-8, 8, (2, 3, 4, 5), dtype=torch.int8)
    expected = pack(codes.flatten(), 4)
    assert torch.equal(pack(codes.to(memory_format=torch.channels_last), 4), expected)
    assert torch.equal(pack(codes.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0), 4), expected)


def test_a_prefix_can_be_read() -> None:
    packed = pack(torch.tensor([1, 2, 3, 4, 5]), 3)
    assert unpack(packed, 3, 2, signed=False).tolist() == [1, 2]


@pytest.mark.parametrize(("count", "bits", "size"), [(0, 3, 0), (1, 1, 1), (8, 1, 1), (9, 1, 2), (3, 3, 2), (5, 8, 5)])
def test_storage_is_dense(count: int, bits: int, size: int) -> None:
    assert packed_size(count, bits) == size
    assert pack(torch.zeros(count, dtype=torch.uint8), bits).numel() == size


@pytest.mark.parametrize(("code", "bits"), [(16, 4), (-9, 4), (2, 1), (-2, 1), (256, 8), (-129, 8)])
def test_a_code_that_does_not_fit_is_refused(code: int, bits: int) -> None:
    with pytest.raises(ConfigError, match=f"do not fit in {bits} bits"):
        pack(torch.tensor([0, code]), bits)


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match=r"1\.\.8 bits, not 9"):
        pack(torch.zeros(1, dtype=torch.uint8), 9)
    with pytest.raises(ConfigError, match=r"5 codes of 4 bits take 3 bytes; there are 2"):
        unpack(torch.zeros(2, dtype=torch.uint8), 4, 5, signed=False)
    with pytest.raises(ConfigError, match=r"one axis of uint8, not torch\.int8"):
        unpack(torch.zeros(2, dtype=torch.int8), 4, 4, signed=False)
