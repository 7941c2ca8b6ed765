"""Weights of -1, 0 and +1 as the binary kernels take them, and the levels of what they meet."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.packing import pack_codes, unpack_codes

PANEL = 8  # outputs side by side
WORD = 64  # bits


@dataclass(frozen=True)
class Levels:
    """The two or three evenly spaced whole numbers that x is quantized to.

    Args:
        low, high: the ends.
        count: how many there are.
        rounds: as an affine type does: `clamp(round_half_even(x / scale) + zero_point, low, high) - zero_point`, NaN
            staying NaN. Else as a table does: the value nearest to x / scale, ties and NaN to the upper.
    """

    low: int
    high: int
    count: int
    rounds: bool

    @property
    def step(self) -> int:
        return (self.high - self.low) // (self.count - 1)


@dataclass(frozen=True)
class BinaryWeight:
    """A weight of -1, 0 and +1: panels of words of bits, and what the sums need.

    An output's bits stand in the order kernel row, kernel column, channel; a word holds 64 channels of one tap, or, of
    few channels, all of several taps of one kernel row.

    Args:
        packed: int64, one axis: for each group, panel of 8 outputs and word the 8 words of the signs (1: +1), then,
            with masks, the 8 words of what is not 0.
        scale: fp32 [outputs in panels]; each group is filled up to whole panels.
        sums: int32 [kernel taps, outputs in panels], of the weights.
        ones: int32 [outputs in panels], how many weights are +1.
        has_masks: whether a bit may be no weight, or a weight 0.
        outputs, channels: of the weight's shape; channels of one group.
        kernel: rows and columns.
        groups: of a convolution.
    """

    packed: Tensor
    scale: Tensor
    sums: Tensor
    ones: Tensor
    has_masks: bool
    outputs: int
    channels: int
    kernel: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, values: Tensor, scale: Tensor, groups: int = 1) -> "BinaryWeight":
        """Lay a weight out.

        Args:
            values: int8 [outputs, inputs], or [outputs, channels of a group, kernel rows, kernel columns].
            scale: fp32 [outputs].
            groups: of a convolution.

        Raises:
            KernelError: the shapes do not fit each other, a value is none of -1, 0, +1, or a scale is not finite.
        """
        if values.ndim not in (2, 4) or 0 in values.shape or groups < 1 or values.shape[0] % groups:
            raise KernelError(f"a weight of shape {tuple(values.shape)} in {groups} groups has no binary layout")
        if scale.shape != values.shape[:1] or not bool(scale.isfinite().all()):
            raise KernelError(f"a weight of {values.shape[0]} outputs takes as many scales, all finite")
        if bool((values.abs() > 1).any()):
            raise KernelError("a binary weight holds -1, 0 and +1")
        whole = values.reshape(*values.shape[:2], *(values.shape[2:] or (1, 1)))
        outputs, channels, rows, columns = whole.shape
        by_group = whole.unflatten(0, (groups, -1)).permute(0, 1, 3, 4, 2)  # group, output, row, column, channel
        by_group = torch.nn.functional.pad(by_group, (0,) * 7 + (-by_group.shape[1] % PANEL,))
        taps = taps_of_word(channels, columns)
        has_masks = bool((whole == 0).any()) or columns % taps != 0
        planes = (by_group > 0, by_group != 0) if has_masks else (by_group > 0,)
        words = torch.stack([_words(plane, taps) for plane in planes], 3)
        sums = by_group.sum(4, dtype=torch.int32).flatten(0, 1).flatten(1).T.contiguous()
        ones = planes[0].flatten(2).sum(2, dtype=torch.int32).flatten()
        kernel = (rows, columns)
        empty = cls(words.reshape(-1), scale, sums, ones, has_masks, outputs, channels, kernel, groups)
        return cls(**{**vars(empty), "scale": empty.in_panels(scale.float())})

    def in_panels(self, vector: Tensor) -> Tensor:
        """A value for each output [outputs], in the order of the panels, filled up with 0."""
        by_group = vector.reshape(self.groups, -1)
        return torch.nn.functional.pad(by_group, (0, -by_group.shape[1] % PANEL)).flatten()

    def out_of_panels(self, vector: Tensor) -> Tensor:
        """The inverse of `in_panels`."""
        return vector.reshape(self.groups, -1)[:, : self.outputs // self.groups].flatten()

    def values(self) -> Tensor:
        """The weights: int8 [outputs, channels of a group, kernel rows, kernel columns]."""
        rows, columns = self.kernel
        taps = taps_of_word(self.channels, columns)
        fields = -(-columns // taps)
        words = self.packed.view(self.groups, -1, rows * fields * -(-taps * self.channels // WORD), self.planes, PANEL)
        count = words.numel() * WORD
        bits = unpack_codes(words.permute(3, 0, 1, 4, 2).flatten().view(torch.uint8), 1, count, True)
        per_field = bits.view(self.planes, self.groups, words.shape[1] * PANEL, rows, fields, -1)
        by_tap = per_field[..., : taps * self.channels].unflatten(-1, (taps, self.channels)).flatten(4, 5)
        real = by_tap[:, :, : self.outputs // self.groups, :, :columns]
        sign = -2 * real[0] - 1  # bits came as 0 and -1
        whole: Tensor = sign * -real[1] if self.has_masks else sign
        return whole.flatten(0, 1).permute(0, 3, 1, 2)

    @property
    def planes(self) -> int:
        return 2 if self.has_masks else 1


def taps_of_word(channels: int, columns: int) -> int:
    """How many taps of one kernel row share a word."""
    return max(1, min(columns, WORD // channels))


def _words(plane: Tensor, taps: int) -> Tensor:
    """[groups, outputs, rows, columns, channels] of bits as [groups, panels, words, 8]."""
    whole = torch.nn.functional.pad(plane.to(torch.uint8), (0, 0, 0, -plane.shape[3] % taps))
    fields = whole.unflatten(3, (-1, taps)).flatten(4)
    filled = torch.nn.functional.pad(fields, (0, -fields.shape[-1] % WORD))
    words = pack_codes(filled, 1).view(torch.int64)
    return words.view(plane.shape[0], -1, PANEL, words.numel() // (plane.shape[0] * plane.shape[1])).transpose(2, 3)


def levels_of(x: Tensor, levels: Levels, scale: Tensor, zero_point: Tensor) -> Tensor:
    """What x is quantized to, zero point subtracted (fp32); parameters broadcast against x."""
    quotient = x / scale
    if levels.rounds:
        return torch.clamp(torch.round(quotient), levels.low - zero_point, levels.high - zero_point)
    passed = torch.zeros_like(x)
    for level in range(1, levels.count):
        passed += (~(quotient < levels.low + levels.step * (level - 0.5))).float()
    return levels.low + levels.step * passed


def check_weight(arguments: tuple[Any, ...], padded: int, words: int, taps: int) -> None:
    """Refuse what follows x in both operators where it does not fit.

    Raises:
        KernelError: why.
    """
    weight, scale, sums, ones, bias, x_scale, x_zero_point, low, high, count, rounds, _, has_masks = arguments[:13]
    if count not in (2, 3) or not -128 <= low < high <= 128 or (high - low) % (count - 1):
        raise KernelError("the levels of x are two or three evenly spaced whole numbers within -128..128")
    if rounds and high - low != count - 1:
        raise KernelError("levels that are rounded to are neighbours")
    expected = {
        "packed weight": (weight, torch.int64, padded * words * (2 if has_masks else 1)),
        "weight's scale": (scale, torch.float32, padded),
        "weight's sums": (sums, torch.int32, padded * taps),
        "weight's ones": (ones, torch.int32, padded),
        "bias": (bias, torch.float32, padded if bias.numel() else 0),
        "zero point of x": (x_zero_point, torch.int32, x_scale.numel()),
        "scale of x": (x_scale, torch.float32, x_scale.numel()),
    }
    for what, (tensor, dtype, elements) in expected.items():
        if tensor.dtype != dtype or tensor.numel() != elements:
            raise KernelError(f"the {what} must have {elements} elements of {dtype}")
    if not bool(((x_scale > 0) & x_scale.isfinite()).all()):
        raise KernelError("the scale of x is no positive number")
    least, most = (low, high) if rounds else (0, 0)
    if not bool(((x_zero_point >= least) & (x_zero_point <= most)).all()):
        raise KernelError("the zero point of x is no code")
