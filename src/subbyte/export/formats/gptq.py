"""GPTQ: the form of AutoGPTQ, GPTQModel and optimum."""

import re
from typing import Any, Literal

import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.export.formats.contents import Contents
from subbyte.export.formats.form import FolderWriter, Reader, StoredOp, check_consecutive, check_divides
from subbyte.export.formats.hugging_face import GPTQ_FILE, Folder
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.export.formats.settings import GroupSize, Settings, checked
from subbyte.export.formats.words import pack_words, unpack_words

_BITS = (2, 3, 4, 8)
_BLOCK = 32  # readers take whole words of both axes at every width
# By what less the zero points are stored.
_DECREMENT = {"gptq": 1, "gptq_v2": 0}


class _Settings(Settings):
    bits: Literal[2, 3, 4, 8]
    group_size: GroupSize
    checkpoint_format: Literal["gptq", "gptq_v2"] = "gptq"
    dynamic: dict[str, dict[str, Any]] | None = None


class Gptq(FolderWriter, Reader):
    """Codes of 2, 3, 4 and 8 bits along the inputs, zero points along the outputs, fp16 scales; one width and group.

    Args:
        checkpoint_format: `gptq`, which stores each zero point less 1, or `gptq_v2`, which stores it as it is.
    """

    op_types = ("Linear", "Conv1D")
    marker = "qweight"
    parts = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, checkpoint_format: str) -> None:
        self.checkpoint_format = checkpoint_format

    def quantization_config(self, contents: Contents) -> dict[str, Any]:
        weights = contents.weights
        kinds: dict[tuple[int, int], str] = {}
        for name, weight in weights.items():
            kinds.setdefault((weight.bits, weight.group_size or -1), name)
        if len(kinds) > 1:
            found = "; ".join(f"{bits} bits in groups of {size} at {name!r}" for (bits, size), name in kinds.items())
            raise CheckpointError(
                f"this format has one width and one group size for all ops, and this model has {found}; give all the "
                "same, or export it as 'compressed-tensors'"
            )
        ((bits, group_size),) = kinds
        left_float = [name for name in contents.op_types if name not in weights and self._is_block(contents, name)]
        return {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group_size,
            "sym": all(weight.is_symmetric for weight in weights.values()),
            "desc_act": False,
            "checkpoint_format": self.checkpoint_format,
            "lm_head": "lm_head" in weights,
            "pack_dtype": "int32",
            **({"dynamic": {f"-:^{re.escape(name)}$": {} for name in left_float}} if left_float else {}),
        }

    def _is_block(self, contents: Contents, name: str) -> bool:
        return contents.op_types[name] in self.op_types and name != "lm_head"

    def files(self, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {GPTQ_FILE: settings}

    def encode(self, weight: IntegerWeight) -> dict[str, Tensor]:
        outputs, inputs = weight.codes.shape
        if weight.bits not in _BITS:
            raise CheckpointError(
                f"this format has 2, 3, 4 and 8 bits, not {weight.bits}; 'compressed-tensors' has all"
            )
        check_divides(_BLOCK, inputs, "inputs")
        check_divides(_BLOCK, outputs, "outputs")
        check_divides(weight.size, inputs, "inputs")
        stored = weight.zero_point - _DECREMENT[self.checkpoint_format]
        if bool((stored < 0).any()):
            raise CheckpointError(
                "a zero point is 0, which this format stores as -1, and readers differ in what that is; export it as "
                "'gptq_v2' or 'compressed-tensors', or quantize with scheme sym"
            )
        return {
            "qweight": pack_words(weight.codes, weight.bits).t(),
            "qzeros": pack_words(stored.t(), weight.bits),
            "scales": _half(weight.scale).t(),
            "g_idx": torch.arange(inputs, dtype=torch.int32) // weight.size,
        }

    def settings(self, folder: Folder) -> "_Settings | None":
        given = folder.quantization("gptq", GPTQ_FILE)
        settings = None if given is None else checked(_Settings, given)
        return settings if settings is not None and settings.checkpoint_format == self.checkpoint_format else None

    def decode(self, op: StoredOp, settings: "_Settings") -> IntegerWeight:
        settings = _of_op(settings, op.name)
        outputs, inputs = op.shape
        bits, group_size = settings.bits, None if settings.group_size == -1 else settings.group_size
        if "g_idx" in op.tensors:
            check_consecutive(op.tensors["g_idx"], inputs, group_size or inputs)
        zero_point = unpack_words(op.tensor("qzeros"), bits, outputs).to(torch.int32).t()
        return IntegerWeight(
            bits=bits,
            codes=unpack_words(op.tensor("qweight").t(), bits, inputs),
            scale=op.tensor("scales").t(),
            zero_point=(zero_point + _DECREMENT[self.checkpoint_format]) & ((1 << bits) - 1),
            group_size=group_size,
        )


def _half(scale: Tensor) -> Tensor:
    half = scale.to(torch.float16)
    if not torch.equal(half.float(), scale.float()):
        raise CheckpointError(
            "its scales are no fp16 numbers, which this format has, and rounding them would change the weight; "
            "quantize with 'scale_format': 'fp16' for the weight"
        )
    return half


def _of_op(settings: _Settings, name: str) -> _Settings:
    """Return the settings of one op: those of the first pattern of GPTQModel's `dynamic` that matches its name.

    A pattern that begins with `-:` names ops that stay float.
    """
    for pattern, values in (settings.dynamic or {}).items():
        if not pattern.startswith("-:") and settings.matches(pattern.removeprefix("+:"), name):
            return checked(_Settings, settings.model_dump() | values)
    return settings
