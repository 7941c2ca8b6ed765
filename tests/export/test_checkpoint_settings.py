"""A checkpoint is loaded on a model of the same settings, and says which are not."""

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import seeded, tiny_transformer
from subbyte import CheckpointError


class Scaled(nn.Module):
    """Has settings that no module says in its extra_repr: plain attributes, and those of a configuration."""

    def __init__(self, **changed: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.heads, self.factor, self.sizes = 2, 0.5, (1, 2)
        self.config, self._calls = Settings(), 0
        for name, value in changed.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        return self.linear(x) * self.factor * self.config.theta


@dataclass
class Settings:
    theta: float = 1.0
    inner: dict[str, Any] = field(default_factory=lambda: {"kind": "default", "bounds": [1, 2]})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"heads": 4}, "heads of the model itself is 2 in the checkpoint, 4 in this model"),
        ({"factor": 0.25}, "factor of the model itself is 0.5 in the checkpoint, 0.25 in this model"),
        ({"sizes": (1, 3)}, "sizes of the model itself is (1, 2) in the checkpoint, (1, 3) in this model"),
        ({"more": True}, "more of the model itself is not set in the checkpoint, True in this model"),
        ({"config": Settings(2.0)}, "config.theta of the model itself is 1.0 in the checkpoint, 2.0"),
        ({"config": Settings(inner={"kind": "other"})}, "config.inner.kind of the model itself is 'default' in the"),
        ({"linear": nn.Linear(6, 6, bias=False)}, "tensor 'linear.bias' is in the checkpoint only"),
        ({"extra": nn.ReLU()}, "module 'extra' is in this model only"),
    ],
)
def test_what_differs_in_another_model_is_said(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    subbyte.save(subbyte.quantize(Scaled(), "w4a8", seeded((4, 6))), tmp_path / "model.safetensors")
    assert subbyte.load(tmp_path / "model.safetensors", Scaled())
    with pytest.raises(CheckpointError, match=re.escape(said)):
        subbyte.load(tmp_path / "model.safetensors", Scaled(**changed))


def test_a_long_setting_is_shortened_in_the_message(tmp_path: Path) -> None:
    subbyte.save(subbyte.quantize(Scaled(kind="x" * 90_000 + "\x1b[31m"), "w4"), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"^[^\x1b]{,1000}$"):
        subbyte.load(tmp_path / "model.safetensors", Scaled(kind="y"))


@pytest.mark.parametrize(
    ("name", "setting"), [("gpt2", {"n_head": 2}), ("llama", {"rope_parameters": {"rope_theta": 10.0}})]
)
def test_a_transformer_of_another_config_is_refused(tmp_path: Path, name: str, setting: dict[str, Any]) -> None:
    model = tiny_transformer(name)
    subbyte.save(subbyte.quantize(model, "w4"), tmp_path / "model.safetensors")
    other = copy.deepcopy(model.config)
    for key, value in setting.items():
        setattr(other, key, getattr(other, key) | value if isinstance(value, dict) else value)
    with pytest.raises(CheckpointError, match=r"config\.(n_head|rope_parameters\.rope_theta) of the model itself is"):
        subbyte.load(tmp_path / "model.safetensors", type(model)(other))


def test_a_transformer_of_another_attention_is_refused(tmp_path: Path) -> None:
    model = tiny_transformer("bert")
    subbyte.save(subbyte.quantize(model, "w4"), tmp_path / "model.safetensors")
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    with pytest.raises(CheckpointError, match=r"attn_implementation of the model itself is sdpa .* eager in this"):
        subbyte.load(tmp_path / "model.safetensors", other)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_where_a_transformer_comes_from_and_what_was_done_with_it_makes_it_no_other(tmp_path: Path, name: str) -> None:
    model, tokens = tiny_transformer(name), torch.arange(10).view(2, 5)
    model.save_pretrained(tmp_path / "float")
    quantized = subbyte.quantize(model, "w4a8", [{"input_ids": tokens}])
    subbyte.save(quantized, tmp_path / "model.safetensors")
    other = type(model).from_pretrained(tmp_path / "float").train()
    other(input_ids=tokens, labels=tokens[:, 0] % 2 if name == "bert" else tokens)
    loaded = subbyte.load(tmp_path / "model.safetensors", other)
    with torch.no_grad():
        assert torch.equal(loaded(tokens)[0], quantized(tokens)[0])


def test_a_model_without_values_is_refused(tmp_path: Path) -> None:
    subbyte.save(subbyte.quantize(Scaled(), "w4"), tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Scaled()
    with pytest.raises(CheckpointError, match="meta device"):
        subbyte.load(tmp_path / "model.safetensors", model)
