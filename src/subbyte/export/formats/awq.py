"""AWQ: the `gemm` form of AutoAWQ, which is read."""

from typing import Any

import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.export.formats.form import Reader, StoredOp
from subbyte.export.formats.hugging_face import AWQ_FILE, CONFIG, Folder
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.export.formats.words import unpack_words

_BITS = 4
# A word holds, from the low bits up, the codes of these of its eight output channels.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# The names of AutoAWQ's own file, where config.json has others.
_OLD_NAMES = {"bits": "w_bit", "group_size": "q_group_size"}


class Awq(Reader):
    """Codes of 4 bits and zero points along the outputs, in an order of their own; fp16 scales."""

    op_types = ("Linear",)
    marker = "qweight"
    parts = ("qweight", "qzeros", "scales")

    def settings(self, folder: Folder) -> dict[str, Any] | None:
        given = folder.files.get(CONFIG, {}).get("quantization_config") or folder.files.get(AWQ_FILE, {})
        if given.get("quant_method", "awq" if AWQ_FILE in folder.files else "") != "awq":
            return None
        settings = {name: given.get(name, given.get(old)) for name, old in _OLD_NAMES.items()}
        form = str(given.get("version", "gemm")).lower()
        if form != "gemm" or settings["bits"] != _BITS:
            raise CheckpointError(f"it is AWQ {form!r} of {settings['bits']} bits; 'gemm' of {_BITS} bits is read")
        return settings

    def decode(self, op: StoredOp, settings: dict[str, Any]) -> IntegerWeight:
        outputs, inputs = op.shape
        stated = settings["group_size"]
        group_size = None if stated in (None, -1) else int(stated)
        groups = 1 if group_size is None else -(-inputs // group_size)
        scale = op.tensor("scales")
        zero_point = _in_order(unpack_words(op.tensor("qzeros"), _BITS, outputs))
        if scale.shape != (groups, outputs) or zero_point.shape != scale.shape:
            raise CheckpointError(
                f"its scales and zero points are of shapes {tuple(scale.shape)} and {tuple(zero_point.shape)}, where "
                f"groups of {group_size or inputs} inputs have {(groups, outputs)}"
            )
        return IntegerWeight(
            bits=_BITS,
            codes=_in_order(unpack_words(op.tensor("qweight"), _BITS, outputs)).t(),
            scale=scale.t(),
            zero_point=zero_point.t().to(torch.int32),
            group_size=group_size,
        )


def _in_order(codes: Tensor) -> Tensor:
    """Columns as they stand in words, in the order of output channels."""
    if codes.shape[1] % len(_ORDER):
        raise CheckpointError(f"it has {codes.shape[1]} outputs, which are no whole number of words")
    place = [_ORDER.index(channel) for channel in range(len(_ORDER))]
    words = codes.reshape(codes.shape[0], -1, len(_ORDER))
    return words[:, :, place].flatten(1)
