"""BERT, GPT-2 and Llama of Hugging Face, small and random: forward, KV cache, generate()."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import tiny_transformer

IDS = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
NAMES = ["bert", "gpt2", "llama"]


def quantized(model: nn.Module, config: str) -> tuple[nn.Module, nn.Module]:
    data = None if config == "w4" or "dynamic" in config else [BATCH]
    prepared = subbyte.prepare(model, config, data)
    return prepared, subbyte.convert(prepared)


@pytest.mark.parametrize("config", ["w8a8", "w4a4", "w4", "w8a8:dynamic", "w4a8:dynamic:g16"])
@pytest.mark.parametrize("name", NAMES)
def test_prepared_equals_converted_and_is_near_float(name: str, config: str) -> None:
    model = tiny_transformer(name)
    prepared, converted = quantized(model, config)
    with torch.no_grad():
        want, got = model(**BATCH).logits, prepared(**BATCH).logits
        assert torch.equal(got, converted(**BATCH).logits)
        assert torch.equal(got, prepared(**BATCH).logits)
    error = float((got - want).square().mean() / want.square().mean())
    assert 0 < error < (1e-2 if config.startswith("w8") else 0.5)


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("bert", "bert.encoder.layer.{}.attention.self"),
        ("gpt2", "transformer.h.{}.attn"),
        ("llama", "model.layers.{}.self_attn"),
    ],
)
@pytest.mark.parametrize("config", ["w4a4", "w8a8:dynamic"])
def test_attention_products_are_quantized(name: str, attention: str, config: str) -> None:
    _, model = quantized(tiny_transformer(name), config)
    with torch.no_grad():
        model(**BATCH)
    rows = {row["name"]: row for row in subbyte.summary(model).rows}
    for layer in (0, 1):
        row = rows[f"{attention.format(layer)}.scaled_dot_product_attention"]
        assert row["activation_dtype"] == ("uint4" if config == "w4a4" else "uint8")
        slots = model.get_submodule(attention.format(layer)).functional_scope.slots
        assert any(kind == "scaled_dot_product_attention" and None not in given for (kind, _), given in slots.items())


@pytest.mark.parametrize("name", NAMES)
def test_masks_positions_and_rotations_stay_float(name: str) -> None:
    prepared, _ = quantized(tiny_transformer(name), "w8a8")
    for row in subbyte.summary(prepared).rows:
        assert "rotary" not in row["name"], row["name"]
        if row["type"] in ("add", "mul"):
            for key in prepared.subbyte_state.input_keys.get(row["name"], []):
                assert float(prepared.subbyte_state.quantizers[key].scale) < 10, row["name"]


@pytest.mark.parametrize("config", ["w8a8", "w4a8", "w4", "w8a8:dynamic"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generate_with_a_cache(name: str, config: str) -> None:
    """Calibrated on whole prompts only; generate() then feeds tokens one by one through the cache."""
    model = tiny_transformer(name)
    prepared, converted = quantized(model, config)
    warm = copy.deepcopy(converted)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad():
        warm(input_ids=IDS[:, :3])
        tokens = converted.generate(IDS[:, :5], **options)  # the first forward of a dynamic model is one with a cache
        assert tokens.shape == (2, 13)
        assert torch.equal(tokens, warm.generate(IDS[:, :5], **options))
        assert torch.equal(tokens, prepared.generate(IDS[:, :5], **options))
        without = converted.generate(IDS[:, :5], **options, use_cache=False)
    if config in ("w8a8", "w4a8"):  # static ranges: what a cache holds is what would be computed again
        assert (tokens == without).float().mean() > 0.8


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_one_step_through_the_cache_equals_the_whole(name: str) -> None:
    _, model = quantized(tiny_transformer(name), "w8a8")
    with torch.no_grad():
        whole = model(input_ids=IDS).logits[:, -1]
        past = model(input_ids=IDS[:, :-1], use_cache=True).past_key_values
        step = model(input_ids=IDS[:, -1:], past_key_values=past).logits[:, -1]
    assert (step - whole).abs().max() < 0.02 * whole.abs().max()


def test_generate_goes_through_the_quantized_forward() -> None:
    model = tiny_transformer("llama")
    _, converted = quantized(model, "w2a2")
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad():
        assert not torch.equal(model.generate(IDS, **options), converted.generate(IDS, **options))
    assert type(converted).__name__ == "LlamaForCausalLM"
    assert converted.config is not model.config


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_both_attention_implementations(name: str, implementation: str) -> None:
    model = tiny_transformer(name)
    model.set_attn_implementation(implementation)
    padded = {**BATCH, "attention_mask": torch.ones_like(IDS).index_fill(1, torch.tensor([10, 11]), 0)}
    # With nothing to mask, some models add no mask at all: the padded batch takes a path of its own.
    converted = subbyte.quantize(model, "w8a8", [BATCH, padded])
    kinds = {row["type"] for row in subbyte.summary(converted).rows}
    assert ("matmul" if implementation == "eager" else "scaled_dot_product_attention") in kinds
    with torch.no_grad():
        want, got = model(**padded).logits, converted(**padded).logits
        if name != "bert":
            want, got = want[:, :10], got[:, :10]
        assert torch.isfinite(got).all()
        assert (got - want).abs().max() < 0.1 * want.abs().max()


def test_tied_embedding_and_head_of_gpt2() -> None:
    model = tiny_transformer("gpt2")
    prepared, converted = quantized(model, "w4")
    assert prepared.lm_head.weight is prepared.transformer.wte.weight
    weights = subbyte.weights(converted)
    assert weights["lm_head"].packed.data_ptr() == weights["transformer.wte"].packed.data_ptr()
