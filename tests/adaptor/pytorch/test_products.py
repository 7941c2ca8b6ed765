"""Which ops the recipes for the first and last convolution or matrix product speak of."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResNetCifar, randomized, seeded, tiny_transformer

IDS = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))


def floats(model: nn.Module, x: Any, *recipes: str) -> set[str]:
    """The convolutions and linear layers that recipes leave float, and embeddings."""
    config = {"recipes": {f"{recipe}_conv_or_matmul_quantization": False for recipe in recipes}}
    rows = subbyte.summary(subbyte.prepare(model, config, [x])).rows
    return {row["name"] for row in rows if row["realized"] == "fp32" and row["type"] != "add"}


class Tokens(nn.Module):
    """An Embedding, a residual connection past the first layer, a head, and a layer that reads a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.one, self.two = nn.Embedding(64, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.bias, self.head, self.unused = nn.Linear(1, 6), nn.Linear(6, 3), nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.one(x)
        x = x + self.two(x) + self.bias(torch.ones(1))
        self.unused(x)
        return self.head(x)


def test_an_embedding_is_neither_convolution_nor_product() -> None:
    model = randomized(Tokens())
    assert floats(model, IDS, "first") == {"one"}
    assert floats(model, IDS, "last") == {"head"}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_of_a_transformer_only_the_first_and_last_layer(name: str) -> None:
    first = {
        "bert": {f"bert.encoder.layer.0.attention.self.{part}" for part in ("query", "key", "value")},
        "gpt2": {"transformer.h.0.attn.c_attn"},
        "llama": {f"model.layers.0.self_attn.{part}_proj" for part in "qkv"},
    }[name]
    last = {"bert": "classifier"}.get(name, "lm_head")
    model, data = tiny_transformer(name), {"input_ids": IDS}
    embeddings = floats(model, data)
    assert floats(model, data, "first") - embeddings == first
    assert floats(model, data, "last") - embeddings == {last}


def test_of_a_convolutional_network() -> None:
    model = randomized(ResNetCifar(8, 4))
    assert floats(model, seeded((2, 3, 8, 8)), "first", "last") == {"conv1", "linear"}


def test_a_matrix_product_may_be_the_first_and_last() -> None:
    class Similarity(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.two(torch.matmul(x, x.transpose(-1, -2)) @ x)
            return self.one(y) @ y.transpose(-1, -2)

    model = randomized(Similarity())
    assert floats(model, seeded((2, 5, 6)), "first") == {"matmul"}
    assert floats(model, seeded((2, 5, 6)), "last") == {"matmul_2"}
