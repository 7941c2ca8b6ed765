"""scaled_dot_product_attention, and the modules of torch that hide it."""

import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from integer_oracle import codes_and_params
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded


class Attention(nn.Module):
    def __init__(self, heads: int = 4, key_heads: int = 4, **options: Any) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 4 * heads), nn.Linear(16, 4 * key_heads), nn.Linear(16, 4 * key_heads)
        self.heads, self.key_heads, self.options = heads, key_heads, options

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, 4)).transpose(-3, -2)
        k, v = (layer(x).unflatten(-1, (self.key_heads, 4)).transpose(-3, -2) for layer in (self.k, self.v))
        if self.heads == 1:  # three axes
            q, k, v = q[..., 0, :, :], k[..., 0, :, :], v[..., 0, :, :]
        options = self.options if mask is None else {**self.options, "attn_mask": mask}
        self.seen = (q.detach(), k.detach(), v.detach())
        return F.scaled_dot_product_attention(q, k, v, **options)


BOOL = torch.ones(5, 5, dtype=torch.bool).tril()
CASES: dict[str, tuple[Attention, Any]] = {
    "plain": (Attention(), None),
    "causal": (Attention(is_causal=True), None),
    "scale": (Attention(scale=0.3), None),
    "bool mask": (Attention(), BOOL),
    "float mask": (Attention(), torch.zeros(5, 5).masked_fill(~BOOL, -math.inf) + seeded((5, 5))),
    "mask per head": (Attention(), BOOL.expand(2, 4, 5, 5)),
    "blocked row": (Attention(), BOOL & (torch.arange(5) != 0)[:, None] & (torch.arange(5) != 3)),
    "grouped": (Attention(4, 2, enable_gqa=True), None),
    "grouped causal": (Attention(4, 1, enable_gqa=True, is_causal=True), None),
    "no dropout": (Attention(dropout_p=0.0), None),
    "three axes": (Attention(1, 1), None),
    "three axes mask": (Attention(1, 1), BOOL),
}


@pytest.mark.parametrize("name", CASES)
def test_close_to_float(name: str) -> None:
    model, mask = CASES[name]
    model, x = randomized(model), seeded((2, 5, 16))
    quantized = subbyte.quantize(model, "w8a8", [(x, mask)])
    with torch.no_grad():
        want, got = model(x, mask), quantized(x, mask)
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    assert (got - want).abs().max() < 0.05 * want.abs().max()
    (row,) = [row for row in subbyte.summary(quantized).rows if row["type"] == "scaled_dot_product_attention"]
    assert row["activation_dtype"] == "uint8"


@pytest.mark.parametrize("config", ["w8a8", "w4a4", "w2a2", "w8a8:dynamic"])
@pytest.mark.parametrize("name", ["causal", "scale", "grouped", "three axes"])
def test_both_products_are_integers_first(name: str, config: str) -> None:
    model, x = randomized(CASES[name][0]), seeded((2, 5, 16))
    quantized = subbyte.quantize(model, config, None if "dynamic" in config else x)
    with torch.no_grad():
        got = quantized(x)
        got = quantized(x)
    q, k, v = quantized.seen
    repeat = model.heads // model.key_heads
    if repeat > 1:
        k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
    (op,) = [op for op in quantized.subbyte_state.graph if op.type == "scaled_dot_product_attention"]
    (slots,) = [s for key, s in quantized.functional_scope.slots.items() if key[0] == op.type]
    (gq, sq), (gk, sk) = codes_and_params(q, slots[0]), codes_and_params(k, slots[1])
    scores = (gq @ gk.transpose(-1, -2)).float() * (sq * sk)
    scores = scores * model.options.get("scale", 1 / math.sqrt(4))
    if model.options.get("is_causal"):
        scores = scores.masked_fill(~BOOL, -math.inf)
    (gp, sp), (gv, sv) = codes_and_params(scores.softmax(-1), slots[2]), codes_and_params(v, slots[3])
    assert torch.equal(got, (gp @ gv).float() * (sp * sv))


def test_a_scale_of_zero_is_not_the_default() -> None:
    model, x = randomized(Attention(scale=0.0)), seeded((2, 5, 16))
    quantized = subbyte.quantize(model, "w8a8", x)
    with torch.no_grad():
        torch.testing.assert_close(quantized(x), model(x), atol=0.03, rtol=0)


class MultiHead(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, **options)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, need_weights: bool = False) -> Tensor:
        x = self.stem(x)
        y, _ = self.attention(x, x, x, need_weights=need_weights)
        return self.head(y)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention_is_opened(need_weights: bool) -> None:
    """Its products are quantized; its projections, which are no modules, are shown as float."""
    model, x = randomized(MultiHead()), seeded((2, 5, 16))
    quantized = subbyte.quantize(model, "w8a8", [(x, need_weights)])
    rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
    inner = [row for row in rows.values() if row["name"].startswith("attention.")]
    products = [row for row in inner if row["type"] in ("matmul", "scaled_dot_product_attention")]
    assert products
    assert all(row["activation_dtype"] == "uint8" for row in products)
    projections = [row for row in inner if row["type"] == "linear"]
    assert len(projections) == 2
    assert all(row["realized"] == "fp32" and row["kernel"] == "float" for row in projections)
    with torch.no_grad(), warnings.catch_warnings():
        want = model(x, need_weights)
        got = quantized(x, need_weights)
        assert (got - want).abs().max() < 0.05 * want.abs().max()
        assert not torch.equal(got, want)


def test_transformer_encoder_takes_no_fast_path_around_its_quantizers() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = randomized(nn.TransformerEncoder(layer, 2))
    x = seeded((2, 5, 16))
    prepared = subbyte.prepare(model, "w4a4", x)
    quantized = subbyte.convert(prepared)
    with torch.no_grad():
        got = quantized(x)
        assert torch.equal(got, prepared(x))
    names = {row["name"]: row for row in subbyte.summary(quantized).rows}
    for index in (0, 1):
        assert names[f"layers.{index}.linear1"]["weight_dtype"] == "int4"
        assert names[f"layers.{index}.linear2"]["activation_dtype"] == "uint4"
        attention = [row for name, row in names.items() if name.startswith(f"layers.{index}.self_attn.")]
        assert {"linear", "scaled_dot_product_attention"} <= {row["type"] for row in attention}
    # Every one of the quantized ops really runs: with the scales of one broken, the output changes.
    with torch.no_grad():
        for op, keys in prepared.subbyte_state.input_keys.items():
            scale = prepared.subbyte_state.quantizers[keys[0]].scale
            scale.mul_(50)
            assert not torch.equal(prepared(x), got), op
            scale.div_(50)


@pytest.mark.parametrize("config", ["w4", "w8a8", "w4a8:dynamic"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_a_padding_mask_makes_no_nested_tensors(layers: int, config: str) -> None:
    """PyTorch makes them for its fused functions only, which read the float weights."""
    model = randomized(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), layers))
    batch = {"src": seeded((4, 6, 16)), "src_key_padding_mask": torch.arange(6) >= torch.tensor([[6], [4], [5], [6]])}
    seen = ~batch["src_key_padding_mask"]
    data = None if config == "w4" else [batch]
    prepared = subbyte.prepare(model, config, data)
    with torch.no_grad():
        want, got = model(**batch)[seen], prepared(**batch)
        assert torch.equal(subbyte.convert(prepared)(**batch), got)
        assert (got[seen] - want).norm() < 0.1 * want.norm()
    assert model.use_nested_tensor


class Eager(nn.Module):
    """Attention as models write it out, with a mask of any kind before the softmax."""

    def __init__(self, value: float, as_module: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.value = value
        self.softmax = nn.Softmax(-1) if as_module else lambda x: torch.softmax(x, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-2, -1) * 0.3
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), self.value)
        return self.softmax(scores) @ self.v(x)


@pytest.mark.parametrize("value", [-math.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
@pytest.mark.parametrize("as_module", [True, False])
@pytest.mark.parametrize("config", ["w8a8", "w8a8:dynamic", "w8a8:kl"])
def test_masked_scores_are_not_quantized(value: float, as_module: bool, config: str) -> None:
    model, x = randomized(Eager(value, as_module)), seeded((2, 5, 8))
    prepared = subbyte.prepare(model, config, x)
    rows = {row["type"].lower(): row for row in subbyte.summary(prepared).rows}
    assert rows["softmax"]["activation_dtype"] == ("fp32" if "dynamic" in config else "uint8")
    with torch.no_grad():
        assert torch.equal(prepared(x), subbyte.convert(prepared)(x))
        assert (prepared(x) - model(x)).abs().max() < 0.06
        changed = x.clone()
        changed[:, -1] += 3  # no earlier position may see the last
        assert torch.equal(prepared(changed)[:, :-1], prepared(x)[:, :-1]) or "dynamic" in config
