"""auto: what it chooses, and from what."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResNetCifar, randomized, seeded, tiny_transformer
from subbyte import ConfigError
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.algorithms.auto import Auto
from subbyte.algorithms.reconstruct import Reconstruct


def _chosen(model: nn.Module, precision: str, data: Tensor | None, minutes: float = 5.0) -> list[str]:
    prepared = subbyte.prepare(model.eval(), precision, data)
    batches = [] if data is None else [Batch.of(data)]
    return [method.name for method in Auto(minutes=minutes).chosen(PreparedModel(prepared, batches))]


@pytest.fixture
def network() -> nn.Module:
    return randomized(ResNetCifar(8, 8)).eval()


def test_by_what_is_lost_and_by_time(network: nn.Module) -> None:
    images = seeded((32, 3, 8, 8))
    assert _chosen(network, "w8a8", images) == ["bias_correction"]
    assert _chosen(network, "w3a4", images) == ["reconstruct"]
    assert _chosen(network, "w3a4", images, minutes=1e-6) == ["gptq", "bias_correction"]
    assert _chosen(network, "w3", images) == ["gptq", "bias_correction"]
    assert _chosen(network, "w2", images) == ["reconstruct"]
    assert _chosen(network, "w2", images, minutes=1e-6) == ["gptq", "bias_correction"]
    assert _chosen(network, "w3", None) == ["hqq"]
    assert _chosen(network, "w8", None) == []


def test_more_minutes_more_steps(network: nn.Module) -> None:
    model = PreparedModel(subbyte.prepare(network, "w3a4", seeded((32, 3, 8, 8))), [Batch.of(seeded((32, 3, 8, 8)))])
    few, many = (Auto(minutes=minutes)._steps(model) for minutes in (1.0, 1000.0))
    assert few < many
    ops = list(model.state.graph)
    forward = 32 * sum(op.macs for op in ops) / 4e10 + 5e-5 * len(ops)
    assert few == int(60 / (6 * forward))  # and nothing that a clock said
    assert Auto(minutes=5000.0).chosen(model) == [Reconstruct(steps=600, unsupported="skip")]


def test_outliers_are_moved() -> None:
    model = tiny_transformer("llama").eval()
    ids = torch.randint(0, 50, (16, 8), generator=torch.Generator().manual_seed(0))
    assert "smoothquant" not in _chosen(model, "w8a8", ids)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("input_layernorm.weight"):
                parameter[3] *= 200
    assert _chosen(model, "w8a8", ids)[0] == "smoothquant"


def test_runs_and_goes_on(network: nn.Module, tmp_path: Path) -> None:
    images = seeded((32, 3, 8, 8))
    recover = {"auto": {"minutes": 0.005}}
    first = subbyte.quantize(network, "w3a4", images, recover=recover, resume=tmp_path)
    units = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    again = subbyte.quantize(network, "w3a4", images, recover=recover, resume=tmp_path)
    assert units
    assert units == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    with torch.no_grad():
        assert torch.equal(first(images), again(images))


def test_stands_alone(network: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"'auto' chooses methods by itself; name no other"):
        subbyte.quantize(network, "w4", recover=["auto", "gptq"])
