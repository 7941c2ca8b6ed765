"""AWQ: the `gemm` form of AutoAWQ, which is read."""

import torch
from pydantic import AliasChoices, Field
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.export.formats.form import Reader, StoredOp
from subbyte.export.formats.hugging_face import AWQ_FILE, Folder
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.export.formats.settings import GroupSize, Settings, checked
from subbyte.export.formats.words import unpack_words

_BITS = 4
# A word holds, from the low bits up, the codes of these of its eight output channels.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class _Settings(Settings):
    # The second names are those of AutoAWQ's own file.
    bits: int = Field(validation_alias=AliasChoices("bits", "w_bit"))
    group_size: GroupSize = Field(validation_alias=AliasChoices("group_size", "q_group_size"))
    version: str = "gemm"


class Awq(Reader):
    """Codes of 4 bits and zero points along the outputs, in an order of their own; fp16 scales."""

    op_types = ("Linear",)
    marker = "qweight"
    parts = ("qweight", "qzeros", "scales")

    def settings(self, folder: Folder) -> "_Settings | None":
        given = folder.quantization("awq", AWQ_FILE)
        if given is None:
            return None
        settings = checked(_Settings, given)
        if settings.version.lower() != "gemm" or settings.bits != _BITS:
            raise CheckpointError(
                f"it is AWQ {settings.version!r} of {settings.bits} bits; 'gemm' of {_BITS} bits is read"
            )
        return settings

    def decode(self, op: StoredOp, settings: "_Settings") -> IntegerWeight:
        outputs = op.shape[0]
        return IntegerWeight(
            bits=_BITS,
            codes=_in_order(unpack_words(op.tensor("qweight"), _BITS, outputs)).t(),
            scale=op.tensor("scales").t(),
            zero_point=_in_order(unpack_words(op.tensor("qzeros"), _BITS, outputs)).t().to(torch.int32),
            group_size=None if settings.group_size == -1 else settings.group_size,
        )


def _in_order(codes: Tensor) -> Tensor:
    """Columns as they stand in words, in the order of output channels."""
    if codes.shape[1] % len(_ORDER):
        raise CheckpointError(f"it has {codes.shape[1]} outputs, which are no whole number of words")
    place = [_ORDER.index(channel) for channel in range(len(_ORDER))]
    words = codes.reshape(codes.shape[0], codes.shape[1] // len(_ORDER), len(_ORDER))
    return words[:, :, place].flatten(1)
