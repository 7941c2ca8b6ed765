"""save_pretrained of quantized Hugging Face models refuses quantization, which from_pretrained would not read."""

import copy
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

import subbyte
from networks import tiny_transformer
from subbyte import CheckpointError

TOKENS = torch.arange(32).reshape(4, 8)


def part_of(model: Any) -> Any:
    """The Hugging Face model inside, without the head."""
    return getattr(model, model.base_model_prefix)


@pytest.mark.parametrize("config", ["w4", "w4a8"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_save_pretrained_is_refused_when_weights_are_packed(name: str, config: str, tmp_path: Path) -> None:
    model = subbyte.quantize(tiny_transformer(name), config, TOKENS)
    for each in (model, part_of(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(CheckpointError, match=r"subbyte\.save\(.*subbyte\.load\(.*subbyte\.export_checkpoint"):
            each.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(("name", "kind"), [("llama", "scaled_dot_product_attention"), ("bert", "Tanh")])
def test_save_pretrained_is_refused_when_only_inputs_are_quantized(name: str, kind: str, tmp_path: Path) -> None:
    config = {"precision": "fp32", "op_type_dict": {kind: {"activation": {"dtype": "uint8"}}}}
    prepared: Any = subbyte.prepare(tiny_transformer(name), config, TOKENS)
    prepared.save_pretrained(tmp_path / "prepared")
    model = subbyte.convert(prepared)
    for each in (model, part_of(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(CheckpointError, match=r"without its quantization.* subbyte\.save\("):
            each.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_push_to_hub_uploads_nothing_when_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = MagicMock()
    monkeypatch.setattr("transformers.utils.hub.hf_api", lambda: calls)
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", calls.card)
    model: Any = subbyte.quantize(tiny_transformer("llama"), "w4")
    monkeypatch.setattr(type(model), "_upload_modified_files", calls.upload)
    with pytest.raises(CheckpointError, match=r"subbyte\.save"):
        model.push_to_hub("someone/something")
    calls.upload.assert_not_called()


def test_save_pretrained_is_refused_of_a_loaded_model_and_on_kernels(tmp_path: Path) -> None:
    model = subbyte.quantize(tiny_transformer("llama"), "w4a8:dynamic")
    subbyte.save(model, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", tiny_transformer("llama"))
    for each in (loaded, part_of(loaded), subbyte.use_kernels(model)):
        with pytest.raises(CheckpointError, match=r"subbyte\.save"):
            each.save_pretrained(tmp_path / "folder")


def test_save_pretrained_of_a_prepared_model_keeps_its_float_weights(tmp_path: Path) -> None:
    model: Any = subbyte.prepare(tiny_transformer("llama"), "w4", TOKENS)
    model.save_pretrained(tmp_path / "folder")
    again = type(tiny_transformer("llama")).from_pretrained(tmp_path / "folder").state_dict()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.items())


def test_state_dict_of_a_packed_model_still_saves_and_loads(tmp_path: Path) -> None:
    model, other = (subbyte.quantize(tiny_transformer("llama"), "w4") for _ in range(2))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(other(TOKENS).logits, model(TOKENS).logits)


def test_a_model_without_save_pretrained_gets_none() -> None:
    assert not hasattr(subbyte.quantize(nn.Sequential(nn.Linear(4, 4)), "w4"), "save_pretrained")
