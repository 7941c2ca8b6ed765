"""A weight in the order in which the linear kernels read it.

Panels of 16 outputs; of each panel, groups in order; of each group, blocks of 32 neighbouring inputs, the last filled
up. A block is 8 steps of 4 inputs, and a step 64 codes: 4 neighbouring inputs of the first output, of the second, and
so on. The bits of a code are cut into parts of 4, 2 and 1 bits (8 bits are one part), the widest first and lowest; a
part of p bits takes p words of 64 bytes, of which each holds 8/p steps, one above the other in the bits of its bytes.
So a word gives a step by one shift and one mask, whatever the width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.memory import empty_in_huge_pages

PANEL = 16  # outputs side by side
STEP = 4  # neighbouring inputs of each
BLOCK = 32  # inputs of a block
# Panels laid out at once: bounds temporary memory.
_PANELS_AT_ONCE = 16


@dataclass(frozen=True)
class LinearWeight:
    """A weight as the linear kernels take it.

    Args:
        packed: uint8, one axis: the codes.
        scale: fp32 [panels, groups, 16].
        zero_point: int32, the same shape, or [1] where all are equal; in the domain of the values.
        sums: int32 [panels, groups, 16]: of the values.
        values: uint8 [16]: what a code stands for; or empty: itself.
        bits: of a code.
        outputs, inputs: the weight's shape.
        group_size: inputs that share a scale.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    sums: Tensor
    values: Tensor
    bits: int
    outputs: int
    inputs: int
    group_size: int

    @classmethod
    def of(
        cls,
        codes: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        bits: int,
        group_size: int,
        values: Tensor | None = None,
    ) -> "LinearWeight":
        """Lay a weight out in panels.

        Args:
            codes: uint8 [outputs, inputs], unsigned.
            scale: fp32 [outputs, groups].
            zero_point: int32 [outputs, groups], in the domain of the values.
            bits: of a code.
            group_size: inputs that share a scale; the last group may be shorter.
            values: uint8, what each code stands for, for codes of at most 4 bits; None: the code itself.

        Raises:
            KernelError: the shapes do not fit each other, or a code takes more bits.
        """
        outputs, inputs = codes.shape
        groups = -(-inputs // group_size)
        if scale.shape != (outputs, groups) or zero_point.shape != (outputs, groups):
            raise KernelError(f"a weight of shape {tuple(codes.shape)} takes scales of shape {(outputs, groups)}")
        if codes.numel() and int(codes.max()) >> bits:
            raise KernelError(f"code {int(codes.max())} takes more than {bits} bits")
        table = codes.new_empty(0)
        if values is not None:
            if bits > 4 or len(values) > 16:
                raise KernelError("a table of values is for codes of at most 4 bits")
            table = torch.nn.functional.pad(values.to(torch.uint8), (0, 16 - len(values)))
        same = zero_point.numel() > 0 and bool((zero_point == zero_point.reshape(-1)[0]).all())
        zero_point = zero_point.int().reshape(-1)[:1].clone() if same else _in_panels(zero_point.int())
        packed = _packed(codes, bits, group_size)
        sums = _in_panels(_sums(codes, table, group_size))
        return cls(packed, _in_panels(scale.float()), zero_point, sums, table, bits, outputs, inputs, group_size)

    def codes(self) -> Tensor:
        """The codes: uint8 [outputs, inputs]."""
        return unpacked(self.packed, self.bits, self.outputs, self.inputs, self.group_size)


def packed_bytes(bits: int, outputs: int, inputs: int, group_size: int) -> int:
    """Bytes of a weight's codes in panels."""
    blocks = sum(-(-size // BLOCK) for size in _group_sizes(inputs, group_size))
    return -(-outputs // PANEL) * blocks * 64 * bits


def unpacked(packed: Tensor, bits: int, outputs: int, inputs: int, group_size: int) -> Tensor:
    """The codes of a weight in panels: uint8 [outputs, inputs]."""
    sizes = _group_sizes(inputs, group_size)
    filled = [-(-size // BLOCK) * BLOCK for size in sizes]
    panels = -(-outputs // PANEL)
    blocks = packed.view(panels, sum(filled) // BLOCK, bits, 64)
    codes = torch.zeros(panels, blocks.shape[1], 8, 64, dtype=torch.uint8, device=packed.device)
    for width, shift in _parts(bits):
        words, in_word = blocks[:, :, shift : shift + width], 8 // width
        for place in range(in_word):
            part = (words >> (place * width)) & ((1 << width) - 1)
            codes[:, :, place::in_word] |= part << shift
    rows = codes.view(panels, -1, PANEL, STEP).transpose(1, 2).reshape(panels * PANEL, -1)[:outputs]
    return torch.cat([piece[:, :size] for piece, size in zip(rows.split(filled, 1), sizes, strict=True)], 1)


def _packed(codes: Tensor, bits: int, group_size: int) -> Tensor:
    outputs, inputs = codes.shape
    packed = empty_in_huge_pages(packed_bytes(bits, outputs, inputs, group_size), codes.device)
    start = 0
    for rows in codes.split(PANEL * _PANELS_AT_ONCE):
        words = _words(rows, bits, group_size)
        packed[start : start + words.numel()] = words.reshape(-1)
        start += words.numel()
    return packed


def _words(codes: Tensor, bits: int, group_size: int) -> Tensor:
    """Some panels: [panels, blocks, bits, 64]."""
    filled = torch.cat([_filled(piece, BLOCK) for piece in codes.split(group_size, 1)], 1)
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


def _sums(codes: Tensor, table: Tensor, group_size: int) -> Tensor:
    if not table.numel():
        return torch.stack([piece.sum(1, dtype=torch.int32) for piece in codes.split(group_size, 1)], 1)
    pieces = codes.split(group_size, 1)
    return torch.stack([table[piece.int()].sum(1, dtype=torch.int32) for piece in pieces], 1)


def _group_sizes(inputs: int, group_size: int) -> list[int]:
    return [min(group_size, inputs - first) for first in range(0, inputs, group_size)]


def _filled(x: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[1] % multiple))


def _in_panels(x: Tensor) -> Tensor:
    """[outputs, groups] as [panels, groups, 16]."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % PANEL))
    return padded.view(-1, PANEL, x.shape[1]).transpose(1, 2).contiguous()
