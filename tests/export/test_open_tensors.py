"""open_tensors: what it reads is in memory, and a file of any other form is refused."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import CheckpointError
from subbyte.export.safe_file import open_tensors

TENSORS = {
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "odd": torch.arange(5, dtype=torch.uint8),
    "half": torch.tensor([0.1, -2.0], dtype=torch.bfloat16),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "some.safetensors", {"key": "value"})
    return tmp_path / "some.safetensors"


def test_open_tensors_returns_what_safetensors_wrote(path: Path) -> None:
    tensors, metadata = open_tensors(path)
    assert metadata == {"key": "value"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize("format", ["subbyte", "gptq"])
def test_a_loaded_model_does_not_change_with_its_file(tmp_path: Path, format: str) -> None:
    x = seeded((2, 32))
    model = subbyte.quantize(randomized(torch.nn.Sequential(torch.nn.Linear(32, 32))), FP16_GROUPS)
    if format == "subbyte":
        file = tmp_path / "model.safetensors"
        subbyte.save(model, file)
        loaded = subbyte.load(file, torch.nn.Sequential(torch.nn.Linear(32, 32)))
    else:
        subbyte.export_checkpoint(model, tmp_path / "folder", format=format)
        file = tmp_path / "folder" / "model.safetensors"
        loaded = subbyte.import_checkpoint(tmp_path / "folder", torch.nn.Sequential(torch.nn.Linear(32, 32)))
    with open(file, "r+b") as written:
        written.write(b"\xff" * file.stat().st_size)
    assert torch.equal(loaded(x), model(x))


FP16_GROUPS = {"precision": "w4:g16", "op_type_dict": {"Linear": {"weight": {"scale_format": "fp16"}}}}
TRUNCATING = """
import os, sys
import torch
import subbyte
sys.path[:0] = sys.argv[2:]
from networks import ResidualNet, randomized, seeded
loaded = subbyte.load(sys.argv[1], ResidualNet())
os.truncate(sys.argv[1], 0)
print(loaded(seeded((4, 3, 8, 8))).double().sum().item())
"""


def test_a_loaded_model_survives_that_its_file_is_truncated(tmp_path: Path) -> None:
    images = seeded((4, 3, 8, 8))
    quantized = subbyte.quantize(randomized(ResidualNet()), "w4a8", images)
    subbyte.save(quantized, tmp_path / "model.safetensors")
    command = [sys.executable, "-c", TRUNCATING, tmp_path / "model.safetensors", Path(__file__).parents[1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == quantized(images).double().sum().item()


def _rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    changed = change(header)
    text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["odd"].update(data_offsets=[0, 5]),
        lambda header: header["odd"].update(shape=[6]),
        lambda header: header["odd"].update(shape=[-5]),
        lambda header: header["odd"].update(shape=[5.0]),
        lambda header: header["odd"].update(shape=[2**62, 2**62]),
        lambda header: header["odd"].update(shape=[0, 2**63]),
        lambda header: header["odd"].update(dtype="U7"),
        lambda header: header["odd"].update(dtype=["U8"]),
        lambda header: header.pop("odd"),
        lambda header: header.update(odd=None),
        lambda header: header.update(__metadata__={"key": 1}),
        lambda header: header.update(__metadata__=[]),
        lambda header: b"[]",
        lambda header: b"[" * 10_000,
        lambda header: b'{"a": ' + b"9" * 5_000 + b"}",
        lambda header: b"\xff",
        lambda header: b"",
    ],
)
def test_a_header_of_another_form_is_refused(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    _rewritten(path, change)
    with pytest.raises(CheckpointError, match=r"some\.safetensors is damaged"):
        open_tensors(path)


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 8, struct.pack("<Q", 2**40) + b"{}"])
def test_a_file_without_a_header_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        open_tensors(path)


def test_bytes_after_the_tensors_are_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        open_tensors(path)
