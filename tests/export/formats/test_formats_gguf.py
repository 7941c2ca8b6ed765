"""GGUF: blocks that the package gguf dequantizes to our values, and that hold our codes and scales."""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from stories import nats, stories260k
from torch import Tensor, nn
from weight_only import gpt2, llama, weight_only

import subbyte
from subbyte import CheckpointError

BLOCKS = {"granularity": "per_group(32)", "scale_format": "fp16"}
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def stored(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def name_of(op: str) -> str:
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if op in outside:
        return f"{outside[op]}.weight"
    _, _, layer, part = op.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def rows(op: str, values: Tensor, heads: tuple[int, int]) -> Tensor:
    """Rows of query and key from transformers' order (halves of a head) to that of rotated neighbours."""
    count = {"q_proj": heads[0], "k_proj": heads[1]}.get(op.rpartition(".")[2])
    if count is None:
        return values
    size = len(values) // count
    order = [head * size + half * (size // 2) + i for head in range(count) for i in range(size // 2) for half in (0, 1)]
    return values[order]


def check_tensors(model: nn.Module, path: Path) -> None:
    found = stored(path)
    heads = (model.config.num_attention_heads, model.config.num_key_value_heads)
    weights = subbyte.weights(model)
    for op, weight in weights.items():
        if op == "lm_head" and model.lm_head.weight is model.model.embed_tokens.weight:
            continue
        tensor = found.pop(name_of(op))
        assert tensor.tensor_type.name == f"Q{weight.spec.dtype.bits}_0"
        blocks = torch.from_numpy(np.array(tensor.data)).view(
            weight.shape[0], -1, 18 if weight.spec.dtype.bits == 4 else 34
        )
        assert torch.equal(blocks[..., :2].contiguous().view(torch.float16).flatten(1), rows(op, weight.scale, heads))
        packed = blocks[..., 2:].contiguous()
        if weight.spec.dtype.bits == 4:
            codes = torch.cat([packed & 15, packed >> 4], -1).flatten(1).to(torch.int8) - 8
        else:
            codes = packed.view(torch.int8).flatten(1)
        assert torch.equal(codes, rows(op, weight.codes, heads))
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))
        assert torch.equal(values, rows(op, weight.dequantize(), heads))
    for name, value in model.state_dict().items():
        op = name.removesuffix(".weight")
        if "weight." in name or op in weights or (op == "lm_head" and name_of(op) not in found):
            continue
        tensor = found.pop(name_of(op))
        assert torch.equal(torch.from_numpy(np.array(tensor.data)), rows(op, value, heads))
    assert not found


@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_every_tensor(tmp_path: Path, dtype: str) -> None:
    quantized = weight_only(llama(), dtype=dtype, **BLOCKS)
    subbyte.export_checkpoint(quantized, tmp_path / "model.gguf", format="gguf")
    check_tensors(quantized, tmp_path / "model.gguf")
    fields = {key: field.contents() for key, field in gguf.GGUFReader(tmp_path / "model.gguf").fields.items()}
    expected = {
        "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
        "llama.feed_forward_length": 96, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
        "llama.rope.dimension_count": 32, "llama.context_length": 64, "llama.vocab_size": 64,
        "general.file_type": {"int4": 2, "int8": 7}[dtype],
    }  # fmt: skip
    assert {key: fields[key] for key in expected} == expected


def test_an_embedding_and_two_widths(tmp_path: Path) -> None:
    config = {
        "approach": "weight_only",
        "op_type_dict": {
            "Linear": {"weight": {"dtype": "int4", **BLOCKS}},
            "Embedding": {"weight": {"dtype": "int8", **BLOCKS}},
        },
        "op_name_dict": {".*v_proj": "fp32"},
    }
    quantized = subbyte.quantize(llama(), config)
    subbyte.export_checkpoint(quantized, tmp_path / "model.gguf", format="gguf")
    check_tensors(quantized, tmp_path / "model.gguf")


def test_a_tied_weight_is_stored_once(tmp_path: Path) -> None:
    request = {"precision": "w4:g32", "op_type_dict": {"Linear|Embedding": {"weight": {"scale_format": "fp16"}}}}
    quantized = subbyte.quantize(llama(tie_word_embeddings=True), request)
    assert quantized.lm_head.weight is quantized.model.embed_tokens.weight
    subbyte.export_checkpoint(quantized, tmp_path / "model.gguf", format="gguf")
    assert "output.weight" not in stored(tmp_path / "model.gguf")
    check_tensors(quantized, tmp_path / "model.gguf")


def test_the_lowest_code_and_the_largest_scale(tmp_path: Path) -> None:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[:2] = torch.tensor([[-8.0], [7.5e5]])  # a row at the lowest code; scales near fp16's end
        model.lm_head.weight[1] *= -0.5
    quantized = weight_only(model, dtype="int4", **BLOCKS)
    assert int(subbyte.weights(quantized)["lm_head"].codes.min()) == -8
    subbyte.export_checkpoint(quantized, tmp_path / "model.gguf", format="gguf")
    check_tensors(quantized, tmp_path / "model.gguf")


def test_a_real_network(tmp_path: Path) -> None:
    weight = {"weight": {"dtype": "int4", **BLOCKS}}
    types = {"Embedding": "fp32", "Linear": weight}
    # Its 172 hidden units are no whole number of blocks; its output layer is tied to the embedding.
    names = {".*down_proj|lm_head": "fp32"}
    model = stories260k()
    quantized = subbyte.quantize(model, {"approach": "weight_only", "op_type_dict": types, "op_name_dict": names})
    subbyte.export_checkpoint(quantized, tmp_path / "model.gguf", format="gguf")
    check_tensors(quantized, tmp_path / "model.gguf")
    assert "output.weight" not in stored(tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").stat().st_size < 460_000  # of 1,044,640 in float
    assert nats(quantized, 5) < nats(model, 5) + 0.2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"dtype": "int4", "granularity": "per_group(32)"}, "no fp16 numbers"),
        (
            {"dtype": "int4", "granularity": "per_group(16)", "scale_format": "fp16"},
            r"groups of 16 inputs \(fits: groups of 32\)",
        ),
        ({"dtype": "int4", "scale_format": "fp16"}, r"one scale for each output channel \(fits: groups of 32\)"),
        ({"dtype": "int3", **BLOCKS}, r"3 bits \(fits: 4 or 8\)"),
        ({"dtype": "uint4", "scheme": "asym", **BLOCKS}, "zero points"),
        ({"dtype": "nf4", **BLOCKS}, "nf4 with scheme sym has no integer codes"),
    ],
)
def test_what_it_cannot_hold(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    quantized = weight_only(llama(), **spec)
    with pytest.raises(CheckpointError, match=rf"op 'model.layers.0.self_attn.q_proj'.*{message}"):
        subbyte.export_checkpoint(quantized, tmp_path / "model.gguf", format="gguf")
    assert list(tmp_path.iterdir()) == []


def test_models_that_are_no_plain_llama(tmp_path: Path) -> None:
    def refused(model: nn.Module, message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            subbyte.export_checkpoint(weight_only(model, dtype="int4", **BLOCKS), tmp_path / "x.gguf", format="gguf")

    refused(gpt2(), "Hugging Face's Llama models, and this is a 'gpt2' model")
    refused(nn.Sequential(nn.Linear(32, 32)), "no Hugging Face model")
    linear = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}
    refused(llama(**linear), "rotary embedding is of type 'linear'")
    refused(llama(hidden_act="gelu"), "activation is 'gelu'")
    refused(llama(intermediate_size=48), r"op '.*down_proj': this format has inputs in blocks of 32, and there are 48")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CheckpointError, match="written by the package gguf, which is not installed: pip install gguf"):
        subbyte.export_checkpoint(weight_only(llama(), dtype="int4", **BLOCKS), tmp_path / "x.gguf", format="gguf")
