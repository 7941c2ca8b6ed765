"""GPTQ: words, zero points and groups as AutoGPTQ and GPTQModel read them, decoded here bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from weight_only import assert_same, codes_of, exchanged, gpt2, llama, logits, weight_only

import subbyte
from subbyte import CheckpointError

HALF = {"scale_format": "fp16"}
SPECS = [
    {"dtype": "int4", "granularity": "per_group(32)", **HALF},
    {"dtype": "int2", "granularity": "per_channel", **HALF},
    {"dtype": "int3", "granularity": "per_group(16)", **HALF},
    {"dtype": "int8", "granularity": "per_channel", "scale_format": "pow2"},
]


def decoded(stored: dict[str, Tensor], name: str, bits: int, decrement: int) -> Tensor:
    """The weight [out, in] as its readers compute it: (q - (z + 1)) s, groups by g_idx."""
    part = {key.removeprefix(f"{name}."): value for key, value in stored.items() if key.startswith(f"{name}.")}
    inputs = len(part["g_idx"])
    codes = codes_of(part["qweight"].t(), bits, inputs).t()
    zeros = codes_of(part["qzeros"], bits, codes.shape[1]) + decrement
    group = part["g_idx"].long()
    return ((codes - zeros[group]).float() * part["scales"].float()[group]).t()


@pytest.mark.parametrize(("network", "form"), [(llama, "gptq"), (gpt2, "gptq"), (gpt2, "gptq_v2")])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_round_trip_and_values(tmp_path: Path, network: Any, form: str, spec: dict[str, Any]) -> None:
    quantized = weight_only(network(), **spec)
    assert_same(quantized, exchanged(quantized, network(), tmp_path / "model", form))
    stored = load_file(tmp_path / "model" / "model.safetensors")
    config = json.loads((tmp_path / "model" / "quantize_config.json").read_text())
    assert config == json.loads((tmp_path / "model" / "config.json").read_text())["quantization_config"]
    assert (config["sym"], config["desc_act"], config["checkpoint_format"]) == (True, False, form)
    for name, weight in subbyte.weights(quantized).items():
        values = weight.dequantize() if network is llama or name == "lm_head" else weight.dequantize().t()
        assert torch.equal(decoded(stored, name, config["bits"], int(form == "gptq")), values)


@pytest.mark.parametrize(("dtype", "form"), [("int4", "gptq_v2"), ("uint4", "gptq_v2"), ("uint3", "gptq_v2")])
def test_zero_points(tmp_path: Path, dtype: str, form: str) -> None:
    quantized = weight_only(llama(), dtype=dtype, scheme="asym", granularity="per_group(32)", **HALF)
    assert_same(quantized, exchanged(quantized, llama(), tmp_path / "model", form))
    stored = load_file(tmp_path / "model" / "model.safetensors")
    weight = subbyte.weights(quantized)["lm_head"]
    assert torch.equal(decoded(stored, "lm_head", weight.spec.dtype.bits, 0), weight.dequantize())
    assert json.loads((tmp_path / "model" / "config.json").read_text())["quantization_config"]["sym"] is False


def with_positive_row() -> nn.Module:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[3].abs_()
    return model


def test_a_zero_point_of_0_needs_the_second_form(tmp_path: Path) -> None:
    quantized = weight_only(with_positive_row(), dtype="uint4", scheme="asym", granularity="per_channel", **HALF)
    with pytest.raises(CheckpointError, match=r"op 'lm_head': a zero point is 0.*'gptq_v2'"):
        subbyte.export_checkpoint(quantized, tmp_path / "model", format="gptq")
    assert list(tmp_path.iterdir()) == []
    assert_same(quantized, exchanged(quantized, llama(), tmp_path / "model", "gptq_v2"))


def test_a_stored_zero_point_of_all_ones_is_0(tmp_path: Path) -> None:
    """As AutoGPTQ reads it: it adds 1 and keeps the low bits."""
    quantized = weight_only(with_positive_row(), dtype="uint4", scheme="asym", granularity="per_channel", **HALF)
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="gptq_v2")
    edit(tmp_path / "model", checkpoint_format="gptq")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    for name in [name for name in stored if name.endswith("qzeros")]:
        nibbles = (codes_of(stored[name], 4, stored[name].shape[1] * 8) - 1) & 15
        words = (nibbles.unflatten(1, (-1, 8)) << (4 * torch.arange(8))).sum(-1)
        stored[name] = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    save_file(stored, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    assert_same(quantized, subbyte.import_checkpoint(tmp_path / "model", llama()))


def edit(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= settings
    (folder / "config.json").write_text(json.dumps(config))


def altered(tmp_path: Path, name: str, change: Any) -> Path:
    """A checkpoint of which one tensor was changed."""
    quantized = weight_only(llama(), dtype="int4", granularity="per_group(32)", **HALF)
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="gptq")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    stored[name] = change(stored[name])
    save_file(stored, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    return tmp_path / "model"


def test_permuted_groups_are_refused(tmp_path: Path) -> None:
    folder = altered(tmp_path, "lm_head.g_idx", lambda index: index.flip(0).contiguous())
    with pytest.raises(CheckpointError, match=r"op 'lm_head': its groups are permuted \(act-order.*desc_act=False"):
        subbyte.import_checkpoint(folder, llama())


def test_act_order_over_the_whole_row_is_read(tmp_path: Path) -> None:
    quantized = weight_only(llama(), dtype="int4", granularity="per_channel", **HALF)
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="gptq")
    edit(tmp_path / "model", desc_act=True)
    assert_same(quantized, subbyte.import_checkpoint(tmp_path / "model", llama()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 8}, r"codes of 8 bits take rows of .* int32 words; there is torch.int32 of shape"),
        ({"bits": 5}, r"bits = 5 \(input should be 2, 3, 4 or 8\)"),
        ({"group_size": 16}, "its group index is not that of .. inputs in groups of 16"),
        ({"group_size": -1}, "its group index is not that of (64 inputs in groups of 64|96 inputs in groups of 96)"),
        ({"group_size": 0}, "group_size.* = 0"),
        ({"dynamic": {"+:(": {"bits": 4}}}, "has the pattern"),
        ({"checkpoint_format": "marlin"}, r"checkpoint_format = 'marlin' \(input should be 'gptq' or 'gptq_v2'\)"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = altered(tmp_path, "lm_head.g_idx", lambda index: index)
    edit(folder, **settings)
    with pytest.raises(CheckpointError, match=message):
        subbyte.import_checkpoint(folder, llama())


def test_an_older_folder(tmp_path: Path) -> None:
    """AutoGPTQ's own names: settings in quantize_config.json, a bias of zeros for every op."""
    quantized = weight_only(llama(), dtype="int4", granularity="per_group(32)", **HALF)
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="gptq")
    folder = tmp_path / "model"
    (folder / "config.json").unlink()
    settings = {"bits": 4, "group_size": 32, "desc_act": False, "sym": True, "true_sequential": True}
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64, dtype=torch.float16)
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    (folder / "model.safetensors").unlink()
    save_file(stored, folder / "gptq_model-4bit-32g.safetensors")
    read = subbyte.import_checkpoint(folder, llama())
    assert torch.equal(logits(read), logits(quantized))
    assert subbyte.weights(read)["lm_head"].spec.dtype.name == "int4"
    stored["model.layers.0.self_attn.q_proj.bias"][1] = 0.5
    save_file(stored, folder / "gptq_model-4bit-32g.safetensors")
    with pytest.raises(CheckpointError, match=r"q_proj.bias, which this model does not have"):
        subbyte.import_checkpoint(folder, llama())


def test_a_width_of_its_own_for_one_op(tmp_path: Path) -> None:
    """GPTQModel's `dynamic`."""
    folder = altered(tmp_path, "lm_head.g_idx", lambda index: index)
    edit(folder, bits=8, dynamic={r"+:model\..*": {"bits": 4}, "lm_head": {"bits": 4}})
    assert subbyte.weights(subbyte.import_checkpoint(folder, llama()))["lm_head"].spec.dtype.name == "int4"


def test_dynamic_pattern_is_bounded_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subbyte.spec.patterns._BUDGET", 0.01)
    folder = altered(tmp_path, "lm_head.g_idx", lambda index: index)
    edit(folder, dynamic={r"+:(?:[\w.]|[\w.]{2})+[^\w.]": {"bits": 4}})
    with pytest.raises(CheckpointError, match=r"has the pattern '.*takes longer than 0\.01 seconds"):
        subbyte.import_checkpoint(folder, llama())


@pytest.mark.parametrize(
    "value", [10**4000, "x" * 10**6, [[1] * 10**5], {"a" * 10**6: 1}], ids=["int", "text", "list", "key"]
)
def test_a_message_quotes_settings_in_short(tmp_path: Path, value: Any) -> None:
    folder = altered(tmp_path, "lm_head.g_idx", lambda index: index)
    edit(folder, bits=value, group_size=value, dynamic=value, checkpoint_format=value)
    with pytest.raises(CheckpointError, match="quantization_config cannot be read") as raised:
        subbyte.import_checkpoint(folder, llama())
    assert len(str(raised.value)) < 2000 + len(str(tmp_path))


def test_config_file_is_bounded_in_size(tmp_path: Path) -> None:
    folder = altered(tmp_path, "lm_head.g_idx", lambda index: index)
    edit(folder, note="x" * (4 << 20))
    with pytest.raises(CheckpointError, match=r"config\.json is larger than 4,194,304 bytes"):
        subbyte.import_checkpoint(folder, llama())


def test_what_it_cannot_hold(tmp_path: Path) -> None:
    def refused(quantized: nn.Module, message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            subbyte.export_checkpoint(quantized, tmp_path / "model", format="gptq")

    refused(weight_only(llama(), dtype="int4", granularity="per_group(32)"), "no fp16 numbers.*'scale_format': 'fp16'")
    refused(weight_only(llama(), dtype="int5", **HALF), "2, 3, 4 and 8 bits, not 5; 'compressed-tensors' has all")
    refused(weight_only(llama(), dtype="int4", granularity="per_group(24)", **HALF), "blocks of 24, and there are 64")
    refused(weight_only(llama(hidden_size=48, head_dim=32), dtype="int4", **HALF), "blocks of 32, and there are 48")
    config = {"Linear": {"weight": {"dtype": "int4", **HALF}}, "Embedding": "fp32"}
    mixed = {
        "approach": "weight_only",
        "op_type_dict": config,
        "op_name_dict": {"lm_head": {"weight": {"dtype": "int8"}}},
    }
    refused(
        subbyte.quantize(llama(), mixed), "4 bits in groups of -1 at '.*q_proj'; 8 bits in groups of -1 at 'lm_head'"
    )
    config["Embedding"] = config["Linear"]
    mixed["op_name_dict"] = {}
    refused(subbyte.quantize(llama(), mixed), "'model.embed_tokens' is Embedding.*'model.embed_tokens': 'fp32'")


def test_float_layers_are_named(tmp_path: Path) -> None:
    types = {"Linear": {"weight": {"dtype": "int4", **HALF}}, "Embedding": "fp32"}
    config = {"approach": "weight_only", "op_type_dict": types, "op_name_dict": {".*down_proj|lm_head": "fp32"}}
    quantized = subbyte.quantize(llama(), config)
    assert_same(quantized, exchanged(quantized, llama(), tmp_path / "model", "gptq"))
    settings = json.loads((tmp_path / "model" / "config.json").read_text())["quantization_config"]
    assert settings["lm_head"] is False
    assert [*settings["dynamic"]] == [rf"-:^model\.layers\.{layer}\.mlp\.down_proj$" for layer in (0, 1)]
