"""The order of panels: the way there and back, natively and in PyTorch, and what is refused."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.errors import KernelError
from subbyte.kernels import panels
from subbyte.kernels.panels import by_panel, from_panels, panel_bytes, to_panels


def place(bits: int, segments: list[int], output: int, segment: int, index: int, bit: int) -> int:
    """Where one bit of a code lies, counted in bits; from the text that describes the order."""
    blocks = [-(-size // 32) for size in segments]
    block = (output // 16) * sum(blocks) + sum(blocks[:segment]) + index // 32
    step, byte = index % 32 // 4, 4 * (output % 16) + index % 4
    start = 0  # of the part that holds the bit
    for width in (8, 4, 2, 1):
        if not bits & width:
            continue
        if bit < start + width:
            in_word = 8 // width
            word = start + step // in_word
            return 8 * ((block * bits + word) * 64 + byte) + step % in_word * width + bit - start
        start += width
    raise AssertionError


@settings(deadline=None, max_examples=60)
@given(
    bits=st.integers(1, 8),
    outputs=st.integers(1, 40),
    segments=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 20),
)
def test_every_bit_lies_where_the_text_says(bits: int, outputs: int, segments: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (outputs, sum(segments)), generator=random, dtype=torch.uint8)
    packed = to_panels(codes, bits, segments)
    assert torch.equal(packed, panels._to_panels(codes, torch.tensor(segments), bits))
    assert packed.numel() == panel_bytes(bits, outputs, segments)
    assert torch.equal(from_panels(packed, bits, outputs, segments), codes)
    output, segment = int(torch.randint(outputs, ())), int(torch.randint(len(segments), ()))
    index = int(torch.randint(segments[segment], ()))
    code = int(codes[output, sum(segments[:segment]) + index])
    for bit in range(bits):
        at = place(bits, segments, output, segment, index, bit)
        assert int(packed[at // 8]) >> (at % 8) & 1 == code >> bit & 1


def test_parameters_by_panel() -> None:
    scale = torch.arange(40.0).view(20, 2)
    laid_out = by_panel(scale)
    assert laid_out.shape == (2, 2, 16)
    assert all(laid_out[n // 16, g, n % 16] == scale[n, g] for n in range(20) for g in range(2))
    assert not laid_out[1, :, 4:].any()


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.zeros(3, 4), [4], 4),
        (torch.zeros(4, dtype=torch.uint8), [4], 4),
        (torch.zeros(3, 4, dtype=torch.uint8), [5], 4),
        (torch.zeros(3, 4, dtype=torch.uint8), [2, 1], 4),
        (torch.zeros(3, 4, dtype=torch.uint8), [5, -1], 4),
        (torch.zeros(3, 4, dtype=torch.uint8), [4, 0], 4),
        (torch.zeros(3, 4, dtype=torch.uint8), [4], 0),
        (torch.zeros(3, 4, dtype=torch.uint8), [4], 9),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[Any, Any, int]) -> None:
    codes, segments, bits = arguments
    for function in (torch.ops.subbyte.to_panels, panels._to_panels):
        with pytest.raises(RuntimeError):
            function(codes, torch.tensor(segments), bits)


def test_codes_too_wide_are_refused() -> None:
    with pytest.raises(KernelError, match="takes more than 3 bits"):
        to_panels(torch.full((1, 4), 8, dtype=torch.uint8), 3, [4])


def test_it_is_a_well_behaved_operator() -> None:
    codes = torch.ones(17, 40, dtype=torch.uint8)
    arguments = (codes, torch.tensor([33, 7]), 3)
    torch.library.opcheck(torch.ops.subbyte.to_panels.default, arguments, test_utils="test_faketensor")
