"""Codes in int32 words: rows of a dense bit stream, low bits first, as compressed-tensors, GPTQ and AWQ have them."""

import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.numerics import pack, unpack

_WORD = 32


def word_count(codes: int, bits: int) -> int:
    """How many words a row of codes takes."""
    return -(-codes * bits // _WORD)


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """Pack each row by itself.

    Args:
        codes: integers [rows, n], 0..2^bits - 1.
        bits: 1..8.

    Returns:
        int32 [rows, ceil(n * bits / 32)]; unused bits are 0.
    """
    rows, count = codes.shape
    padded = torch.zeros(rows, -(-count // _WORD) * _WORD, dtype=torch.uint8)  # whole rows end on a word
    padded[:, :count] = codes
    words = pack(padded, bits).view(torch.int32).view(rows, padded.shape[1] * bits // _WORD)
    return words[:, : word_count(count, bits)].contiguous()


def unpack_words(words: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes of each row: uint8 [rows, count].

    Raises:
        CheckpointError: it is no matrix of int32, or its rows are not of the width that `count` codes take.
    """
    if words.dtype != torch.int32 or words.ndim != 2 or words.shape[1] != word_count(count, bits):
        raise CheckpointError(
            f"{count} codes of {bits} bits take rows of {word_count(count, bits)} int32 words; there is "
            f"{words.dtype} of shape {tuple(words.shape)}"
        )
    rows, blocks = words.shape[0], -(-count // _WORD)
    padded = torch.zeros(rows, blocks * bits, dtype=torch.int32)
    padded[:, : words.shape[1]] = words
    codes = unpack(padded.view(torch.uint8).view(-1), bits, rows * blocks * _WORD, signed=False)
    return codes.view(rows, blocks * _WORD)[:, :count]
