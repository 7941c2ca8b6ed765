"""compressed-tensors: read by its own package and by transformers as what it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file, save_file
from torch import nn
from weight_only import assert_same, codes_of, exchanged, gpt2, llama, logits, weight_only

import subbyte
from subbyte import CheckpointError

SPECS = [
    {"dtype": "int4", "granularity": "per_group(32)"},
    {"dtype": "int4", "granularity": "per_group(16)", "scheme": "asym"},
    {"dtype": "uint4", "granularity": "per_channel", "scheme": "asym", "scale_format": "fp16"},
    {"dtype": "uint8", "granularity": "per_channel", "scheme": "sym"},
    {"dtype": "int8", "granularity": "per_tensor"},
    {"dtype": "int3", "granularity": "per_group(32)", "scheme": "asym", "scale_format": "bf16"},
    {"dtype": "int1", "granularity": "per_channel"},
    {"dtype": "int6", "granularity": "per_group(8)", "scale_format": "pow2"},
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_round_trip_is_exact(tmp_path: Path, spec: dict[str, Any]) -> None:
    quantized = weight_only(llama(), **spec)
    assert_same(quantized, exchanged(quantized, llama(), tmp_path / "model", "compressed-tensors"))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_its_own_package_dequantizes_to_our_values(tmp_path: Path, spec: dict[str, Any]) -> None:
    quantized = weight_only(llama(), **spec)
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="compressed-tensors")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    config = json.loads((tmp_path / "model" / "config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(config).config_groups["group_0"]
    assert scheme.targets == ["Linear"]
    reader = BaseCompressor.get_value_from_registry("pack-quantized")
    for name, weight in subbyte.weights(quantized).items():
        parts = {key.rpartition(".")[2]: value for key, value in stored.items() if key.startswith(f"{name}.weight_")}
        read = reader.decompress(parts, scheme)["weight"]
        scale = weight.scale if weight.scale.ndim == 2 else weight.scale.expand(weight.shape[0], 1)
        grid = weight.grid().unflatten(1, (scale.shape[1], -1)).to(read.dtype)  # they multiply in the scale's own type
        assert torch.equal(read, (grid * scale[..., None]).flatten(1))


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")
@pytest.mark.parametrize(("scheme", "dequantize"), [("sym", False), ("sym", True), ("asym", True)])
def test_transformers_runs_it(tmp_path: Path, scheme: str, dequantize: bool) -> None:
    # Packed zero points it reads at this version with `dequantize` alone, its own package's files too.
    quantized = weight_only(llama(), dtype="int4", granularity="per_group(32)", scheme=scheme)
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="compressed-tensors")
    config = transformers.CompressedTensorsConfig(dequantize=dequantize)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", quantization_config=config)
    assert torch.equal(logits(read), logits(quantized))
    assert torch.equal(read.lm_head.weight, subbyte.weights(quantized)["lm_head"].dequantize())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_in_half_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    format = {"float16": "fp16", "bfloat16": "bf16"}[name]
    quantized = weight_only(llama().to(dtype), dtype="int4", granularity="per_group(32)", scale_format=format)
    assert_same(quantized, exchanged(quantized, llama().to(dtype), tmp_path / "model", "compressed-tensors"))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == name
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    logits(read)  # the first forward unpacks
    for op, weight in subbyte.weights(quantized).items():
        assert torch.equal(read.get_submodule(op).weight, weight.dequantize().to(dtype))


def test_words_are_unsigned_codes_low_bits_first(tmp_path: Path) -> None:
    quantized = weight_only(llama(), dtype="int3", granularity="per_group(32)", scheme="asym")
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="compressed-tensors")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    for name, weight in subbyte.weights(quantized).items():
        assert torch.equal(codes_of(stored[f"{name}.weight_packed"], 3, weight.shape[1]) - 4, weight.codes.long())
        zero_point = codes_of(stored[f"{name}.weight_zero_point"].t(), 3, weight.shape[0]).t() - 4
        assert torch.equal(zero_point, weight.zero_point.long())
        assert torch.equal(stored[f"{name}.weight_scale"], weight.scale)
        assert stored[f"{name}.weight_shape"].tolist() == list(weight.shape)


def test_zero_points_of_weights_that_are_said_to_have_none(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    subbyte.export_checkpoint(weight_only(llama(), dtype="int4", scheme="asym"), folder, format="compressed-tensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = True
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"op '.*': .* says symmetric, and it has zero points"):
        subbyte.import_checkpoint(folder, llama())


def test_widths_of_their_own(tmp_path: Path) -> None:
    types = {"Linear": {"weight": {"dtype": "int4", "granularity": "per_group(32)"}}, "Embedding": "fp32"}
    names = {".*v_proj": {"weight": {"dtype": "int8", "granularity": "per_channel"}}, ".*layers.0.*o_proj": "fp32"}
    quantized = subbyte.quantize(llama(), {"approach": "weight_only", "op_type_dict": types, "op_name_dict": names})
    assert_same(quantized, exchanged(quantized, llama(), tmp_path / "model", "compressed-tensors"))
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")), logits(quantized))


@pytest.mark.parametrize("ops", ["lm_head", "model.embed_tokens", "lm_head|model.embed_tokens"])
def test_tied_weights_come_apart(tmp_path: Path, ops: str) -> None:
    model = llama(tie_word_embeddings=True)
    types = {"Linear": {"weight": {"dtype": "int8"}}, "Embedding": "fp32"}
    names = {"lm_head": "fp32", ops: {"weight": {"dtype": "int8"}}}
    quantized = subbyte.quantize(model, {"approach": "weight_only", "op_type_dict": types, "op_name_dict": names})
    read = exchanged(quantized, model, tmp_path / "model", "compressed-tensors")
    assert_same(quantized, read)
    assert (read.lm_head.weight is read.model.embed_tokens.weight) == (ops == "lm_head|model.embed_tokens")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert_same(quantized, subbyte.import_checkpoint(tmp_path / "model", llama(tie_word_embeddings=False)))
    targets = config["quantization_config"]["config_groups"]["group_0"]["targets"]
    if "embed" in ops:  # a quantized Embedding transformers does not read at this version
        assert targets == ["Embedding", "Linear"]
    else:
        read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        assert torch.equal(logits(read), logits(quantized))


def test_tied_weights_that_stay_float_stay_tied(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    types = {"Linear": {"weight": {"dtype": "int4"}}, "Embedding": "fp32"}
    config = {"approach": "weight_only", "op_type_dict": types, "op_name_dict": {"lm_head": "fp32"}}
    quantized = subbyte.quantize(model, config)
    read = exchanged(quantized, model, tmp_path / "model", "compressed-tensors")
    assert_same(quantized, read)
    assert read.lm_head.weight is read.model.embed_tokens.weight
    assert "lm_head.weight" not in load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")), logits(quantized))


BATCHES = [
    {"input_ids": torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(seed))} for seed in (1, 2)
]
RECOVERED = {
    "approach": "weight_only",
    "op_type_dict": {"Linear": {"weight": {"dtype": "int4", "granularity": "per_group(32)"}}, "Embedding": "fp32"},
    "op_name_dict": {"lm_head": "fp32"},
}


@pytest.mark.parametrize("method", ["gptq", "awq", "rotate"])
def test_recovered_models(tmp_path: Path, method: str) -> None:
    model = llama(tie_word_embeddings=True)
    with torch.no_grad():
        model.model.norm.weight.copy_(torch.linspace(0.5, 2, 64))
    quantized = subbyte.quantize(model, RECOVERED, BATCHES, recover=[method])
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="compressed-tensors")
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(read), logits(quantized))
    untied = method == "rotate"  # which folds the norm's weight into the head, and not into the embedding
    assert_same(quantized, subbyte.import_checkpoint(tmp_path / "model", llama(tie_word_embeddings=not untied)))
    if untied:
        with pytest.raises(CheckpointError, match=r"this model ties it to another tensor.*tie_word_embeddings=False"):
            subbyte.import_checkpoint(tmp_path / "model", llama(tie_word_embeddings=True))


def test_a_bias_that_no_reader_would_look_for(tmp_path: Path) -> None:
    quantized = subbyte.quantize(llama(), RECOVERED, BATCHES, recover=["bias_correction"])
    with pytest.raises(CheckpointError, match=r"q_proj.bias' is not in the float model.*bias_correction"):
        subbyte.export_checkpoint(quantized, tmp_path / "model", format="compressed-tensors")


def of_others(folder: Path, scheme: dict[str, Any], format: str, *, targets: list[str]) -> nn.Module:
    """A checkpoint that the package itself compressed, of a model of float values; returns the model of its values."""
    model = llama()
    arguments = {"weights": scheme, "targets": targets}
    config = {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": arguments}}
    given = QuantizationConfig.model_validate(config).config_groups["group_0"]
    package = BaseCompressor.get_value_from_registry(format)
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        op = name.removesuffix(".weight")
        if "_proj" not in name:
            stored[name] = tensor
            continue
        grouped = tensor.unflatten(1, (-1, scheme.get("group_size") or tensor.shape[1]))
        low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
        steps = 2 ** scheme["num_bits"] - 1
        scale = (high - low) / steps if not scheme["symmetric"] else torch.maximum(high, -low) / (steps / 2)
        zero_point = (-(2 ** (scheme["num_bits"] - 1)) - low / scale).round().clamp(-128, 127).to(torch.int8)
        parts = {"weight": tensor, "weight_scale": scale}
        if not scheme["symmetric"]:
            parts["weight_zero_point"] = zero_point
        parts = package.compress(parts, given)
        stored |= {f"{op}.{part}": value for part, value in parts.items()}
        with torch.no_grad():
            model.get_submodule(op).weight.copy_(package.decompress(parts, given)["weight"])
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return model


@pytest.mark.parametrize("format", ["pack-quantized", "int-quantized", "naive-quantized"])
@pytest.mark.parametrize(
    ("symmetric", "bits", "group_size", "targets"),
    [
        (True, 4, 32, ["Linear"]),
        (True, 8, None, [r"re:.*_proj$"]),
        (False, 8, None, ["Linear"]),
        (False, 3, 16, [r"re:.*layers\.\d+\.(self_attn|mlp)\."]),
    ],
)
def test_what_its_own_package_wrote(
    tmp_path: Path, format: str, symmetric: bool, bits: int, group_size: int | None, targets: list[str]
) -> None:
    scheme = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group_size,
        "strategy": "group" if group_size else "channel",
    }  # fmt: skip
    model = of_others(tmp_path / "model", scheme, format, targets=targets)
    read = subbyte.import_checkpoint(tmp_path / "model", llama())
    assert torch.equal(logits(read), logits(model))
    weight = subbyte.weights(read)["model.layers.1.mlp.up_proj"]
    assert weight.spec.dtype.name == f"{'int' if symmetric else 'uint'}{bits}"
    assert torch.equal(weight.dequantize(), model.model.layers[1].mlp.up_proj.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache_scheme": {"num_bits": 8}}, "has a kv_cache_scheme, and weights alone are read"),
        ({"sparsity_config": {"format": "sparse-bitmask"}}, "its weights are sparse"),
        ({"format": "marlin-24"}, "format is 'marlin-24'; pack-quantized, int-quantized, naive-quantized are read"),
        ({"config_groups": None}, "config_groups = None"),
        ({"config_groups": {}}, "no group of its quantization_config speaks of it"),
    ],
)
def test_settings_that_are_not_read(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    altered(tmp_path / "model", change)
    with pytest.raises(CheckpointError, match=message):
        subbyte.import_checkpoint(tmp_path / "model", llama())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"group_size": 16},
            r"are of \(64, 2\) channels and groups, where groups of 16 inputs have \(64, 4\)",
        ),
        ({"group_size": None, "strategy": "channel"}, r"where groups of 64 inputs have \(64, 1\)"),
        ({"num_bits": 3}, "64 codes of 3 bits take rows of 6 int32 words; there is torch.int32 of shape"),
        ({"num_bits": 8, "type": "float"}, r"config_groups.group_0.weights.type = 'float' \(input should be 'int'\)"),
        ({"strategy": "block"}, r"weights.strategy = 'block' \(input should be 'tensor', 'channel' or 'group'\)"),
        ({"group_size": 0}, "weights.group_size.* = 0"),
        ({"symmetric": False}, "its weight_zero_point is missing"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = altered(tmp_path / "model", {})
    group = config["quantization_config"]["config_groups"]["group_0"]
    group["weights"] |= change
    group["targets"] = ["lm_head"]  # the others are found by type
    config["quantization_config"]["config_groups"]["group_1"] = {"targets": ["Linear"], "weights": group["weights"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        subbyte.import_checkpoint(tmp_path / "model", llama())


def test_what_early_releases_laid_out_otherwise(tmp_path: Path) -> None:
    quantized = weight_only(llama(), dtype="int3")
    subbyte.export_checkpoint(quantized, tmp_path / "model", format="compressed-tensors")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["quantization_config"]["version"] = "0.9.4"
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"it is of compressed-tensors 0\.9\.4, which laid 3 bits out otherwise"):
        subbyte.import_checkpoint(tmp_path / "model", llama())


def test_quantized_activations_are_not_read(tmp_path: Path) -> None:
    config = altered(tmp_path / "model", {})
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": True}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="its activations are quantized, and weight-only checkpoints are read"):
        subbyte.import_checkpoint(tmp_path / "model", llama())


def altered(folder: Path, change: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint whose configuration is changed; returns the configuration."""
    subbyte.export_checkpoint(
        weight_only(llama(), dtype="int4", granularity="per_group(32)"), folder, format="compressed-tensors"
    )
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    return config


def test_what_it_cannot_hold(tmp_path: Path) -> None:
    def refused(quantized: nn.Module, message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            subbyte.export_checkpoint(quantized, tmp_path / "model", format="compressed-tensors")

    refused(weight_only(gpt2(), dtype="int4"), "'transformer.h.0.attn.c_attn' is Conv1D.*Linear and Embedding alone")
    refused(weight_only(llama(), dtype="int4", granularity="per_group(48)"), "blocks of 48, and there are 64")
    refused(weight_only(llama(), dtype="ternary"), "ternary with scheme sym has no integer codes")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("weight", lambda tensors, op: torch.zeros(64, 64), "both weight and weight_packed"),
        ("weight_scale", lambda tensors, op: -tensors[f"{op}.weight_scale"], "its scales, in torch.float32, are not"),
    ],
    ids=["two forms", "negative scales"],
)
def test_weights_that_cannot_be_meant(tmp_path: Path, part: str, change: Any, message: str) -> None:
    subbyte.export_checkpoint(weight_only(llama()), tmp_path / "model", format="compressed-tensors")
    file, op = tmp_path / "model" / "model.safetensors", "model.layers.0.self_attn.q_proj"
    tensors = load_file(file)
    tensors[f"{op}.{part}"] = change(tensors, op)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=message):
        subbyte.import_checkpoint(tmp_path / "model", llama())
