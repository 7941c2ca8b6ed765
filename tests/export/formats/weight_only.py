"""Weight-only models for formats: a Llama and a GPT-2 of widths that every format takes."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import subbyte
from networks import tiny_transformer

IDS = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))


def llama(**config: Any) -> nn.Module:
    """Two layers of 64 channels, a head of keys for two of queries, in eval()."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | heads | config))).eval()


def gpt2() -> nn.Module:
    """Of Conv1D, its output layer tied to its embedding."""
    return tiny_transformer("gpt2")


def weight_only(model: nn.Module, **weight: Any) -> nn.Module:
    """The model with every Linear and Conv1D quantized as said, and no Embedding."""
    present = {type(module).__name__ for module in model.modules()}
    asked = {"Embedding": "fp32", "Linear": {"weight": weight}, "Conv1D": {"weight": weight}}
    types = {name: value for name, value in asked.items() if name in present}
    return subbyte.quantize(model, {"approach": "weight_only", "op_type_dict": types})


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def exchanged(model: nn.Module, float_model: nn.Module, path: Path, format: str) -> nn.Module:
    """The model after it was written and read."""
    subbyte.export_checkpoint(model, path, format=format)
    return subbyte.import_checkpoint(path, float_model)


def assert_same(model: nn.Module, other: nn.Module) -> None:
    """Every weight has the same spec, codes, scales and zero points, and the outputs are the same."""
    weights, others = subbyte.weights(model), subbyte.weights(other)
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert weight.spec == others[name].spec
        for part, tensor in weight.tensors().items():
            stored = others[name].tensors()[part]
            assert stored.dtype == tensor.dtype, part
            assert torch.equal(stored, tensor), part
    assert torch.equal(logits(model), logits(other))


def bits_of(words: Tensor) -> Tensor:
    """The bits of int32 words, low bits first: [..., 32 * words]."""
    return ((words[..., None].to(torch.int64) >> torch.arange(32)) & 1).flatten(-2)


def codes_of(words: Tensor, bits: int, count: int) -> Tensor:
    """The first codes of rows of a dense bit stream, read bit by bit."""
    stream = bits_of(words)[..., : count * bits].unflatten(-1, (count, bits))
    return (stream << torch.arange(bits)).sum(-1)
