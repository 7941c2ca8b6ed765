"""save and load: which values of modules and of tensors a checkpoint may hold."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte import CheckpointError, ModelError
from subbyte.export import safe_file
from subbyte.export.checkpoint import read_report

X, IMAGES = seeded((4, 6)), seeded((2, 3, 4, 4))


class Versioned(nn.Linear):
    """Loads only what it saved itself."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *args: Any) -> None:
        if local_metadata.get("version") != self._version:
            raise ValueError(f"version must be {self._version}, got {local_metadata.get('version')}")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_a_module_without_a_version_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Versioned, "_version", None)
    model, path = nn.Sequential(Versioned(6, 6)), tmp_path / "model.safetensors"
    quantized = subbyte.quantize(randomized(model), "w4")
    subbyte.save(quantized, path)
    assert torch.equal(subbyte.load(path, model)(X), quantized(X))


@pytest.mark.parametrize("version", ["2", 2.5, (2, 1), True])
def test_save_refuses_a_version_that_is_no_integer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Any
) -> None:
    monkeypatch.setattr(Versioned, "_version", version)
    quantized = subbyte.quantize(nn.Sequential(Versioned(6, 6)), "w4")
    with pytest.raises(ModelError, match=f"module '0' has the version .*{type(version).__name__};"):
        subbyte.save(quantized, tmp_path / "model.safetensors")
    assert not [*tmp_path.iterdir()]


def with_norm() -> nn.Module:
    return randomized(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))).eval()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_load_and_save_refuse_a_norm_factor_that_is_not_finite(tmp_path: Path, value: float) -> None:
    model, path = with_norm(), tmp_path / "model.safetensors"
    subbyte.save(subbyte.quantize(model, "w4", IMAGES), path)
    tensors, header = safe_file.read(path)
    tensors["0.norm_factor"][0], header["tensors"]["0.norm_factor"]["finite"] = value, False
    safe_file.write(path, tensors, header)
    with pytest.raises(CheckpointError, match=f"op '0': norm_factor holds {value}"):
        subbyte.load(path, model)
    model[1].weight.data[0] = value
    with pytest.raises(CheckpointError, match=f"op '0': norm_factor holds {value}"):
        subbyte.save(subbyte.quantize(model, "w4", IMAGES), path)


def test_a_norm_factor_of_zero_comes_back(tmp_path: Path) -> None:
    model = with_norm()
    model[1].weight.data[0] = 0.0  # as of a pruned channel
    quantized = subbyte.quantize(model, "w4", IMAGES)
    subbyte.save(quantized, tmp_path / "model.safetensors")
    assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(IMAGES), quantized(IMAGES))


def test_load_refuses_a_scale_of_nan_of_an_input_that_was_measured(tmp_path: Path) -> None:
    model, path = randomized(nn.Sequential(nn.Linear(6, 6))), tmp_path / "model.safetensors"
    subbyte.save(subbyte.quantize(model, "w4a8", X), path)
    tensors, header = safe_file.read(path)
    (scale,) = [name for name in tensors if "quantizers" in name and name.endswith("scale")]
    tensors[scale].fill_(float("nan"))
    header["tensors"][scale]["finite"] = False
    safe_file.write(path, tensors, header)
    with pytest.raises(CheckpointError, match="input of op '0': no scale is finite, although activation_sqnr"):
        subbyte.load(path, model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compression", "Infinity"),
        ("compression", "NaN"),
        ("compression", -1.0),
        ("quantized_params_share", "NaN"),
        ("low_bit_macs_share", 1.5),
        ("quantized_macs_share", -0.5),
        ("macs_share", {"w4a8": 7.0}),
    ],
)
def test_read_report_refuses_totals_that_cannot_be(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "model.safetensors"
    subbyte.save(subbyte.quantize(nn.Sequential(nn.Linear(6, 6)), "w4"), path)
    tensors, header = safe_file.read(path)
    header["report"]["totals"][key] = value
    safe_file.write(path, tensors, header)
    with pytest.raises(CheckpointError, match=f"report.totals.{key}"):
        read_report(path)
