"""compressed-tensors: read by its own package and by transformers as what it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file
from weight_only import assert_same, codes_of, exchanged, llama, logits, weight_only

import subbyte

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
