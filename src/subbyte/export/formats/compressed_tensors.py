"""compressed-tensors: what llm-compressor writes, and vLLM and transformers read."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.export.formats.contents import Contents
from subbyte.export.formats.form import FolderWriter, Reader, StoredOp, check_consecutive, check_divides
from subbyte.export.formats.hugging_face import CONFIG, Folder
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.export.formats.words import pack_words, unpack_words

_METHOD = "compressed-tensors"
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")


class CompressedTensors(FolderWriter, Reader):
    """Codes of 1 to 8 bits, a scale per channel or group, zero points; Linear and Embedding.

    Written as `pack-quantized`: unsigned codes, a dense stream of each row in int32 words. `int-quantized` and
    `naive-quantized`, a code in an int8, are read too.
    """

    op_types = ("Linear", "Embedding")
    marker = "weight_scale"
    parts = ("weight", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")

    def quantization_config(self, contents: Contents) -> dict[str, Any]:
        groups: dict[str, list[str]] = {}
        arguments: dict[str, dict[str, Any]] = {}
        for name, weight in contents.weights.items():
            values = _arguments(weight)
            arguments[str(values)] = values
            groups.setdefault(str(values), []).append(name)
        kinds = sorted({contents.op_types[name] for name in contents.weights})
        others = [name for name, kind in contents.op_types.items() if kind in kinds and name not in contents.weights]
        return {
            "quant_method": _METHOD,
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                f"group_{index}": {
                    "targets": kinds if len(groups) == 1 else names,
                    "weights": arguments[key],
                    "input_activations": None,
                    "output_activations": None,
                }
                for index, (key, names) in enumerate(groups.items())
            },
            "ignore": others,
            "kv_cache_scheme": None,
        }

    def encode(self, weight: IntegerWeight) -> dict[str, Tensor]:
        check_divides(weight.size, weight.codes.shape[1], "inputs")
        tensors = {
            "weight_packed": pack_words(weight.codes, weight.bits),
            "weight_scale": weight.scale.contiguous(),
            "weight_shape": torch.tensor(weight.codes.shape),
        }
        if not weight.is_symmetric:
            tensors["weight_zero_point"] = pack_words(weight.zero_point.t(), weight.bits).t()
        return tensors

    def settings(self, folder: Folder) -> dict[str, Any] | None:
        settings = folder.files.get(CONFIG, {}).get("quantization_config", {})
        if settings.get("quant_method") != _METHOD:
            return None
        for key in ("kv_cache_scheme", "transform_config"):
            if settings.get(key):
                raise CheckpointError(f"its quantization_config has a {key}, and weights alone are read")
        if (settings.get("sparsity_config") or {}).get("format", "dense") != "dense":
            raise CheckpointError("its weights are sparse, and dense ones are read")
        return dict(settings)

    def decode(self, op: StoredOp, settings: dict[str, Any]) -> IntegerWeight:
        scheme = _scheme_of(op, settings)
        form = scheme.get("format") or settings.get("format")
        if form not in _FORMATS:
            raise CheckpointError(f"its format is {form!r}; {', '.join(_FORMATS)} are read")
        given = scheme["weights"]
        bits, scale = int(given["num_bits"]), op.tensor("weight_scale")
        group_size = given.get("group_size") if given.get("strategy") == "group" else None
        groups = 1 if group_size is None else -(-op.shape[1] // group_size)
        if scale.numel() == 1:  # strategy tensor
            scale = scale.reshape(1, 1).expand(op.shape[0], 1)
        if scale.shape != (op.shape[0], groups):
            raise CheckpointError(
                f"its scales are of shape {tuple(scale.shape)}, where {groups} groups of {op.shape[0]} rows have "
                f"{(op.shape[0], groups)}"
            )
        if "weight_g_idx" in op.tensors:
            check_consecutive(op.tensors["weight_g_idx"], group_size or op.shape[1])
        return IntegerWeight(
            bits=bits,
            codes=_codes(op, bits),
            scale=scale,
            zero_point=_zero_point(op, bits, groups, symmetric=given.get("symmetric", True)),
            group_size=group_size,
        )


def _arguments(weight: IntegerWeight) -> dict[str, Any]:
    strategy = "channel" if weight.group_size is None else "group"
    return {
        "num_bits": weight.bits,
        "type": "int",
        "symmetric": weight.is_symmetric,
        "strategy": strategy,
        "group_size": weight.group_size,
        "dynamic": False,
    }


def _codes(op: StoredOp, bits: int) -> Tensor:
    if "weight_packed" not in op.tensors:
        return _unsigned(op.tensor("weight"), bits)
    shape = op.tensor("weight_shape").tolist()
    if tuple(shape) != op.shape:
        raise CheckpointError(f"its weight has shape {tuple(shape)}, and in this model {op.shape}")
    return unpack_words(op.tensors["weight_packed"], bits, op.shape[1])


def _zero_point(op: StoredOp, bits: int, groups: int, *, symmetric: bool) -> Tensor:
    if symmetric:
        return torch.full((op.shape[0], groups), 1 << (bits - 1), dtype=torch.int32)
    stored = op.tensor("weight_zero_point")
    if stored.dtype == torch.int32 and "weight_packed" in op.tensors:
        return unpack_words(stored.t(), bits, op.shape[0]).t().to(torch.int32)
    if stored.numel() == 1:
        stored = stored.reshape(1, 1).expand(op.shape[0], 1)
    return _unsigned(stored, bits).to(torch.int32)


def _unsigned(values: Tensor, bits: int) -> Tensor:
    """Signed codes, one in an int8, as unsigned ones."""
    low, high = (int(end) for end in torch.aminmax(values))
    middle = 1 << (bits - 1)
    if values.dtype != torch.int8 or low < -middle or high >= middle:
        raise CheckpointError(f"its codes are {values.dtype} in {low}..{high}, which are not {bits} bits in an int8")
    return (values.to(torch.int16) + middle).to(torch.uint8)


def _scheme_of(op: StoredOp, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The group of the configuration that speaks of an op: by name, else by pattern, else by type."""
    groups: list[dict[str, Any]] = list((settings.get("config_groups") or {}).values())
    kinds = (
        lambda target: target == op.name,
        lambda target: _matches(target, op.name),
        lambda target: target == op.kind,
    )
    for speaks_of in kinds:
        for group in groups:
            if any(speaks_of(target) for target in group.get("targets", ())):
                return _checked(group)
    raise CheckpointError("no group of its quantization_config speaks of it")


def _matches(target: str, name: str) -> bool:
    return target.startswith("re:") and re.match(target.removeprefix("re:"), name) is not None


def _checked(group: dict[str, Any]) -> dict[str, Any]:
    if group.get("input_activations") or group.get("output_activations"):
        raise CheckpointError("its activations are quantized, and weight-only checkpoints are read")
    weights = group.get("weights") or {}
    strategies = ("tensor", "channel", "group")
    if weights.get("type") != "int" or not 1 <= weights.get("num_bits", 0) <= 8:
        raise CheckpointError(
            f"its weights are {weights.get('num_bits')} bits of type {weights.get('type')!r}; int is read"
        )
    if weights.get("strategy") not in strategies:
        raise CheckpointError(f"its strategy is {weights.get('strategy')!r}; {', '.join(strategies)} are read")
    return group
