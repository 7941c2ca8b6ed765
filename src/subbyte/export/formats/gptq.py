"""GPTQ: the form of AutoGPTQ, GPTQModel and optimum."""

import re
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.export.formats.contents import Contents
from subbyte.export.formats.form import FolderWriter, Reader, StoredOp, check_consecutive, check_divides
from subbyte.export.formats.hugging_face import CONFIG, GPTQ_FILE, Folder
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.export.formats.words import pack_words, unpack_words

_BITS = (2, 3, 4, 8)
_BLOCK = 32  # readers take whole words of both axes at every width
# By what less the zero points are stored.
_DECREMENT = {"gptq": 1, "gptq_v2": 0}


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

    def settings(self, folder: Folder) -> dict[str, Any] | None:
        settings = folder.files.get(CONFIG, {}).get("quantization_config") or folder.files.get(GPTQ_FILE, {})
        if settings.get("quant_method", "gptq" if GPTQ_FILE in folder.files else "") != "gptq":
            return None
        form = settings.get("checkpoint_format", "gptq")
        if form != self.checkpoint_format:
            if form not in _DECREMENT:
                raise CheckpointError(f"its checkpoint_format is {form!r}; {' and '.join(_DECREMENT)} are read")
            return None
        return dict(settings)

    def decode(self, op: StoredOp, settings: dict[str, Any]) -> IntegerWeight:
        settings = settings | _override(settings, op.name)
        outputs, inputs = op.shape
        bits, stated = int(settings.get("bits", 0)), int(settings.get("group_size", -1))
        if bits not in _BITS:
            raise CheckpointError(f"its width is {bits} bits; 2, 3, 4 and 8 are read")
        group_size = None if stated == -1 else stated
        groups = 1 if group_size is None else -(-inputs // group_size)
        scale = op.tensor("scales")
        if scale.shape != (groups, outputs):
            raise CheckpointError(
                f"its scales are of shape {tuple(scale.shape)}, where groups of {group_size or inputs} inputs have "
                f"{(groups, outputs)}"
            )
        if "g_idx" in op.tensors:
            check_consecutive(op.tensors["g_idx"], group_size or inputs)
        zero_point = unpack_words(op.tensor("qzeros"), bits, outputs).to(torch.int32).t()
        if zero_point.shape != (outputs, groups):
            raise CheckpointError(f"it has zero points of {zero_point.shape[1]} groups, and scales of {groups}")
        return IntegerWeight(
            bits=bits,
            codes=unpack_words(op.tensor("qweight").t(), bits, inputs),
            scale=scale.t(),
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


def _override(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """What GPTQModel's `dynamic` says of one op: the first pattern that matches."""
    for pattern, values in (settings.get("dynamic") or {}).items():
        if re.match(pattern.removeprefix("+:"), name):
            return dict(values)
    return {}
