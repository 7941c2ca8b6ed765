"""compressed-tensors: what llm-compressor writes, and vLLM and transformers read."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from subbyte.errors import CheckpointError, quoted
from subbyte.export.formats.contents import Contents
from subbyte.export.formats.form import FolderWriter, Reader, StoredOp, check_consecutive, check_divides
from subbyte.export.formats.hugging_face import Folder
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.export.formats.settings import GroupSize, Settings, checked
from subbyte.export.formats.words import pack_words, unpack_words

_METHOD = "compressed-tensors"
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
# The release from which on `pack-quantized` is a dense stream at every width.
_DENSE_SINCE = (0, 18)


class _Weights(Settings):
    num_bits: Annotated[int, Field(ge=1, le=8)]
    type: Literal["int"] = "int"
    symmetric: bool = True
    strategy: Literal["tensor", "channel", "group"]
    group_size: GroupSize | None = None

    @property
    def inputs(self) -> int | None:
        """How many share a scale; None for a whole row."""
        return self.group_size if self.strategy == "group" and self.group_size != -1 else None


class _Scheme(Settings):
    targets: list[str]
    weights: _Weights
    input_activations: dict[str, Any] | None = None
    output_activations: dict[str, Any] | None = None
    format: str | None = None


class _Settings(Settings):
    format: str
    config_groups: dict[str, _Scheme]
    version: str | None = None
    kv_cache_scheme: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None
    sparsity_config: dict[str, Any] | None = None


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
            "version": "0.18.0",
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

    def settings(self, folder: Folder) -> "_Settings | None":
        given = folder.quantization(_METHOD)
        if given is None:
            return None
        settings = checked(_Settings, given)
        for key, value in (
            ("kv_cache_scheme", settings.kv_cache_scheme),
            ("transform_config", settings.transform_config),
        ):
            if value:
                raise CheckpointError(f"its quantization_config has a {key}, and weights alone are read")
        if (settings.sparsity_config or {}).get("format", "dense") != "dense":
            raise CheckpointError("its weights are sparse, and dense ones are read")
        return settings

    def decode(self, op: StoredOp, settings: "_Settings") -> IntegerWeight:
        scheme = _scheme_of(op, settings)
        given, form = scheme.weights, scheme.format or settings.format
        if form not in _FORMATS:
            raise CheckpointError(f"its format is {quoted(form)}; {', '.join(_FORMATS)} are read")
        if form == "pack-quantized":
            _check_dense(given.num_bits, settings.version)
        groups = 1 if given.inputs is None else -(-op.shape[1] // given.inputs)
        if "weight_g_idx" in op.tensors:
            check_consecutive(op.tensors["weight_g_idx"], op.shape[1], given.inputs or op.shape[1])
        return IntegerWeight(
            bits=given.num_bits,
            codes=_codes(op, given.num_bits),
            scale=_of_rows(op.tensor("weight_scale"), op),
            zero_point=_zero_point(op, given, groups),
            group_size=given.inputs,
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
    if {"weight", "weight_packed"} <= op.tensors.keys():
        raise CheckpointError("it has both weight and weight_packed, and one of them would be passed over")
    if "weight_packed" not in op.tensors:
        return _unsigned(op.tensor("weight"), bits)
    shape = op.tensor("weight_shape").tolist()
    if shape != list(op.shape):
        raise CheckpointError(f"its weight has shape {shape}, and in this model {list(op.shape)}")
    return unpack_words(op.tensors["weight_packed"], bits, op.shape[1])


def _zero_point(op: StoredOp, given: "_Weights", groups: int) -> Tensor:
    middle = torch.full((op.shape[0], groups), 1 << (given.num_bits - 1), dtype=torch.int32)
    if not given.symmetric:
        return _stored_zero_point(op, given.num_bits)
    stored = op.tensors.get("weight_zero_point")
    if stored is not None and stored.any() and not torch.equal(_stored_zero_point(op, given.num_bits), middle):
        raise CheckpointError("its quantization_config says symmetric, and it has zero points")
    return middle


def _stored_zero_point(op: StoredOp, bits: int) -> Tensor:
    stored = op.tensor("weight_zero_point")
    if stored.dtype == torch.int32 and "weight_packed" in op.tensors:
        return unpack_words(stored.t(), bits, op.shape[0]).t().to(torch.int32)
    return _unsigned(_of_rows(stored, op), bits).to(torch.int32)


def _of_rows(param: Tensor, op: StoredOp) -> Tensor:
    """A scale or zero point for each row: of the strategy `tensor` one is stored."""
    return param.reshape(1, 1).expand(op.shape[0], 1) if param.numel() == 1 else param


def _unsigned(values: Tensor, bits: int) -> Tensor:
    """Signed codes, one in an int8, as unsigned ones."""
    low, high = (int(end) for end in torch.aminmax(values))
    middle = 1 << (bits - 1)
    if values.dtype != torch.int8 or low < -middle or high >= middle:
        raise CheckpointError(f"its codes are {values.dtype} in {low}..{high}, which are not {bits} bits in an int8")
    return (values.to(torch.int16) + middle).to(torch.uint8)


def _check_dense(bits: int, version: str | None) -> None:
    """Refuse widths that earlier releases laid out otherwise: no code of theirs lay across two words."""
    release = re.match(r"(\d+)\.(\d+)", version or "")
    if 32 % bits and release and tuple(map(int, release.groups())) < _DENSE_SINCE:
        raise CheckpointError(
            f"it is of compressed-tensors {version}, which laid {bits} bits out otherwise; files of 0.18 on are read"
        )


def _scheme_of(op: StoredOp, settings: "_Settings") -> "_Scheme":
    """The group of the configuration that speaks of an op: by name, else by pattern, else by type."""
    kinds: tuple[Callable[[str], bool], ...] = (
        lambda target: target == op.name,
        lambda target: target.startswith("re:") and settings.matches(target.removeprefix("re:"), op.name),
        lambda target: target == op.kind,
    )
    for speaks_of in kinds:
        for group in settings.config_groups.values():
            if any(speaks_of(target) for target in group.targets):
                if group.input_activations or group.output_activations:
                    raise CheckpointError("its activations are quantized, and weight-only checkpoints are read")
                return group
    raise CheckpointError("no group of its quantization_config speaks of it")
