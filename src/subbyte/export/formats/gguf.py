"""GGUF: the one-file format of llama.cpp, which is written for Llama models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.export.formats.contents import Contents
from subbyte.export.formats.form import Writer, check_divides, check_type
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.export.safe_file import replaced

_BLOCK = 32
_HEAD, _EMBEDDING = "lm_head", "model.embed_tokens"
_TYPES = {4: "Q4_0", 8: "Q8_0"}
_FLOATS = {torch.float32: np.float32, torch.float16: np.float16}


class Gguf(Writer):
    """Blocks of 32 inputs with one fp16 scale: 4 bits as Q4_0, 8 bits as Q8_0, symmetric; Linear and Embedding.

    The rows of query and key stand in the order of llama.cpp's rotary embedding, which rotates neighbours where
    transformers rotates halves. The tokenizer is not written: the file says that it has none.
    """

    op_types = ("Linear", "Embedding")

    def write(self, contents: Contents, path: str | Path) -> None:
        gguf = _library()
        metadata = _Llama(contents.config)
        tensors = self._tensors(contents, metadata, gguf)
        with replaced(path) as temporary:
            writer = gguf.GGUFWriter(temporary, "llama")
            metadata.write(writer)
            writer.add_file_type(_file_type(contents, gguf))
            for name, (data, kind) in tensors.items():
                writer.add_tensor(name, data, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()

    def _tensors(self, contents: Contents, metadata: "_Llama", gguf: Any) -> dict[str, tuple[Any, Any]]:
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, metadata.layers)
        found = {}
        for name, weight in contents.weights.items():
            if name == _HEAD and weight is contents.weights.get(_EMBEDDING):
                continue  # what llama.cpp reads where there is no output layer is the embedding
            check_type(contents, name, self.op_types)
            data = metadata.in_order(f"{name}.weight", torch.from_numpy(_blocks(name, weight)))
            found[_named(f"{name}.weight", names)] = data.numpy(), gguf.GGMLQuantizationType[_TYPES[weight.bits]]
        for name, tensor in contents.tensors.items():
            # llama.cpp computes norms and biases in fp32.
            kept = (
                tensor.detach().cpu() if tensor.ndim > 1 and tensor.dtype in _FLOATS else tensor.detach().cpu().float()
            )
            found[_named(name, names)] = metadata.in_order(name, kept).contiguous().numpy(), None
        return found


class _Llama:
    """The configuration of a Llama model.

    Raises:
        CheckpointError: it is of another architecture, or has what llama.cpp's Llama lacks.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        kind = config.get("model_type")
        if kind != "llama":
            what = f"a {kind!r} model" if kind else "no Hugging Face model"
            raise CheckpointError(f"GGUF is written for Hugging Face's Llama models, and this is {what}")
        self.config = config
        self.layers = int(config["num_hidden_layers"])
        self.heads = int(config["num_attention_heads"])
        self.key_heads = int(config.get("num_key_value_heads") or self.heads)
        self.head_size = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        self.rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = self.rope.get("rope_type", "default")
        if kind != "default":
            raise CheckpointError(f"its rotary embedding is of type {kind!r}; 'default' is written")
        if config.get("hidden_act", "silu") != "silu":
            raise CheckpointError(f"its activation is {config['hidden_act']!r}; llama.cpp's Llama has 'silu'")

    def write(self, writer: Any) -> None:
        """Put it in a GGUFWriter."""
        config = self.config
        writer.add_block_count(self.layers)
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.key_heads)
        writer.add_key_length(self.head_size)
        writer.add_value_length(self.head_size)
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_dimension_count(self.head_size)
        writer.add_rope_freq_base(float(self.rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
        writer.add_vocab_size(config["vocab_size"])
        writer.add_tokenizer_model("none")
        writer.add_quantization_version(2)

    def in_order(self, name: str, rows: Tensor) -> Tensor:
        """The rows of a tensor as llama.cpp has them: of query and key the two halves of each head interleaved."""
        heads = {"q_proj": self.heads, "k_proj": self.key_heads}.get(name.split(".")[-2] if "." in name else "")
        if heads is None:
            return rows
        halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        return halves.transpose(1, 2).reshape(rows.shape)


def _blocks(name: str, weight: IntegerWeight) -> Any:
    """uint8 [out, bytes]: for each block its scale in fp16, then its codes."""
    _check(name, weight)
    outputs, inputs = weight.codes.shape
    scale = weight.scale.to(torch.float16)
    codes = weight.codes.view(outputs, inputs // _BLOCK, _BLOCK)
    # Of 4 bits the first half of a block is in the low nibbles; of 8 bits codes are two's complement.
    stored = codes[..., : _BLOCK // 2] | codes[..., _BLOCK // 2 :] << 4 if weight.bits == 4 else codes ^ 0x80
    return torch.cat([scale.contiguous().view(torch.uint8).view(*scale.shape, 2), stored], -1).flatten(1).numpy()


def _check(name: str, weight: IntegerWeight) -> None:
    half = weight.scale.to(torch.float16)
    blocks = "one scale for each output channel" if weight.group_size is None else f"groups of {weight.size} inputs"
    problems = {
        f"{weight.bits} bits (fits: 4 or 8)": weight.bits not in _TYPES,
        f"{blocks} (fits: groups of 32)": weight.group_size != _BLOCK,
        "zero points (fits: scheme sym of a signed type)": not weight.is_symmetric,
        "scales that are no fp16 numbers (fits: 'scale_format': 'fp16')": not torch.equal(
            half.float(), weight.scale.float()
        ),
    }
    found = [problem for problem, holds in problems.items() if holds]
    if found:
        raise CheckpointError(
            f"op {name!r} has {', '.join(found)}; GGUF's Q4_0 and Q8_0 are blocks of 32 symmetric codes with one fp16 "
            "scale, as 'w4:g32' with fp16 scales is"
        )
    try:
        check_divides(_BLOCK, weight.codes.shape[1], "inputs")
    except CheckpointError as error:
        raise CheckpointError(f"op {name!r}: {error}") from None


def _named(name: str, names: Any) -> str:
    found: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise CheckpointError(f"{name} has no name in GGUF's Llama")
    return found


def _file_type(contents: Contents, gguf: Any) -> Any:
    """What most of the model is; readers show it, and go by the type of each tensor."""
    widths = [weight.bits for weight in contents.weights.values()]
    return gguf.LlamaFileType[f"MOSTLY_{_TYPES[max(set(widths), key=widths.count)]}"]


def _library() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            "GGUF is written by the package gguf, which is not installed: pip install gguf"
        ) from error
    return gguf
