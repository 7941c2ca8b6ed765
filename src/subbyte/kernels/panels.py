"""The order in which the linear and convolution kernels read a packed weight.

Panels of 16 outputs; of each panel, segments in order (a group of a linear layer, a row of a convolution's kernel); of
each segment, blocks of 32 neighbouring inputs, the last filled up. A block is 8 steps of 4 inputs, and a step 64 codes:
4 neighbouring inputs of the first output, of the second, and so on. The bits of a code are cut into parts of 4, 2 and 1
bits (8 bits are one part), the widest first and lowest; a part of p bits takes p words of 64 bytes, of which each holds
8/p steps, one above the other in the bits of its bytes. So a word gives a step by one shift and one mask, whatever the
width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.memory import empty_in_huge_pages
from subbyte.kernels.operator import define

PANEL = 16  # outputs side by side
STEP = 4  # neighbouring inputs of each
BLOCK = 32  # inputs of a block
# Panels laid out at once: bounds temporary memory.
_PANELS_AT_ONCE = 16


def panel_bytes(bits: int, outputs: int, segments: Sequence[int]) -> int:
    """Bytes of a weight's codes in panels; `segments`: inputs of each."""
    blocks = sum(-(-size // BLOCK) for size in segments)
    return -(-outputs // PANEL) * blocks * 64 * bits


def to_panels(codes: Tensor, bits: int, segments: Sequence[int]) -> Tensor:
    """Codes (uint8 [outputs, inputs]) in panels: uint8, one axis.

    Raises:
        KernelError: a code takes more bits.
    """
    if codes.numel() and int(codes.max()) >> bits:
        raise KernelError(f"code {int(codes.max())} takes more than {bits} bits")
    packed: Tensor = torch.ops.subbyte.to_panels(codes, torch.tensor(segments), bits)
    return packed


def _to_panels(codes: Tensor, segments: Tensor, bits: int) -> Tensor:
    lengths: list[int] = segments.tolist()
    if not 1 <= bits <= 8:
        raise KernelError(f"codes take 1..8 bits, not {bits}")
    if codes.ndim != 2 or codes.dtype != torch.uint8 or segments.ndim != 1 or segments.dtype != torch.int64:
        raise KernelError("codes are uint8 of rows and columns, the segments a list of int64 lengths")
    if sum(lengths) != codes.shape[1] or min(lengths, default=1) <= 0:
        raise KernelError("segments have inputs, and cover all")
    packed = empty_in_huge_pages(panel_bytes(bits, len(codes), lengths), codes.device)
    start = 0
    for rows in codes.split(PANEL * _PANELS_AT_ONCE):
        words = _words(rows, bits, lengths)
        packed[start : start + words.numel()] = words.reshape(-1)
        start += words.numel()
    return packed


def from_panels(packed: Tensor, bits: int, outputs: int, segments: Sequence[int]) -> Tensor:
    """The codes of a weight in panels: uint8 [outputs, inputs]."""
    filled = [-(-size // BLOCK) * BLOCK for size in segments]
    panels = -(-outputs // PANEL)
    blocks = packed.view(panels, sum(filled) // BLOCK, bits, 64)
    codes = torch.zeros(panels, blocks.shape[1], 8, 64, dtype=torch.uint8, device=packed.device)
    for width, shift in _parts(bits):
        words, in_word = blocks[:, :, shift : shift + width], 8 // width
        for place in range(in_word):
            part = (words >> (place * width)) & ((1 << width) - 1)
            codes[:, :, place::in_word] |= part << shift
    rows = codes.view(panels, -1, PANEL, STEP).transpose(1, 2).reshape(panels * PANEL, -1)[:outputs]
    return torch.cat([piece[:, :size] for piece, size in zip(rows.split(filled, 1), segments, strict=True)], 1)


def by_panel(x: Tensor) -> Tensor:
    """[outputs, groups] as [panels, groups, 16]."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % PANEL))
    return padded.view(-1, PANEL, x.shape[1]).transpose(1, 2).contiguous()


def one_or_by_panel(zero_point: Tensor) -> Tensor:
    """Zero points [outputs, groups] as the kernels take them: one where all are equal, else as `by_panel`."""
    first = zero_point.int().reshape(-1)[:1].clone()
    return first if bool((zero_point == first).all()) else by_panel(zero_point.int())


def table_of(values: Tensor | None, bits: int) -> Tensor:
    """What codes stand for, as the kernels take it: 16 bytes, or none where codes stand for themselves.

    Raises:
        KernelError: codes of more than 4 bits.
    """
    if values is None:
        return torch.empty(0, dtype=torch.uint8)
    if bits > 4 or len(values) > 16:
        raise KernelError("a table of values is for codes of at most 4 bits")
    return torch.nn.functional.pad(values.to(torch.uint8), (0, 16 - len(values)))


def _words(codes: Tensor, bits: int, segments: Sequence[int]) -> Tensor:
    """Some panels: [panels, blocks, bits, 64]."""
    pieces = codes.split(list(segments), 1)
    filled = torch.cat([torch.nn.functional.pad(piece, (0, -piece.shape[1] % BLOCK)) for piece in pieces], 1)
    rows = torch.nn.functional.pad(filled, (0, 0, 0, -len(filled) % PANEL))
    steps = rows.view(-1, PANEL, rows.shape[1] // STEP, STEP).transpose(1, 2).reshape(-1, rows.shape[1] // BLOCK, 8, 64)
    words = torch.zeros(*steps.shape[:2], bits, 64, dtype=torch.uint8, device=codes.device)
    for width, shift in _parts(bits):
        in_word = 8 // width
        part = (steps >> shift) & ((1 << width) - 1)
        for place in range(in_word):
            words[:, :, shift : shift + width] |= part[:, :, place::in_word] << (place * width)
    return words


def _parts(bits: int) -> Iterator[tuple[int, int]]:
    """Width of each part of a code, and where it begins."""
    shift = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            yield width, shift
            shift += width


def _shape(codes: Tensor, segments: Tensor, bits: int) -> Tensor:
    size = torch.library.get_ctx().new_dynamic_size()  # segments are data
    return codes.new_empty(size)


define("to_panels(Tensor codes, Tensor segments, int bits) -> Tensor", _to_panels, _shape)
