"""load: a checkpoint fits the code of its network after edits that change no op, and no other code."""

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte import CheckpointError

CODE = """
import torch
from torch import nn

def shift(x, y):
    return torch.tanh(x) + y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        y = self.a(x)
        return shift(y, self.b(y)) * y
"""
SAME = {
    "a comment": ("        y = self.a(x)", "        # First.\n\n        y = self.a(x)"),
    "line breaks": ("self.b(y)) * y", "\n            self.b(y),\n        ) * y"),
    "another name": ("y", "yes"),
    "another function": ("class Net", "def more(x):\n    return x + x\n\nclass Net"),
}
OTHER = {
    "one more op": ("y = self.a(x)", "y = self.a(x) + 1"),
    "one op fewer": (" * y", ""),
    "a helper's code": ("torch.tanh(x)", "torch.tanh(x).abs()"),
}


def network_of(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    name = f"network_{abs(hash(code))}"
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    return randomized(importlib.import_module(name).Net())


@pytest.mark.parametrize("edit", SAME.values(), ids=SAME.keys())
def test_an_edit_that_changes_no_op_keeps_a_checkpoint(
    tmp_path: Path, edit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = seeded((4, 6))
    quantized = subbyte.quantize(network_of(tmp_path, CODE, monkeypatch), "w4a4", x)
    subbyte.save(quantized, tmp_path / "model.safetensors")
    code = re.sub(rf"\b{re.escape(edit[0])}\b", edit[1], CODE) if edit[0] == "y" else CODE.replace(*edit)
    edited = network_of(tmp_path, code, monkeypatch)
    assert code != CODE
    assert torch.equal(subbyte.load(tmp_path / "model.safetensors", edited)(x), quantized(x))


@pytest.mark.parametrize("edit", OTHER.values(), ids=OTHER.keys())
def test_a_checkpoint_of_other_code_is_refused(
    tmp_path: Path, edit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized = subbyte.quantize(network_of(tmp_path, CODE, monkeypatch), "w4a4", seeded((4, 6)))
    subbyte.save(quantized, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"(Net\.forward|shift) has been rewritten"):
        subbyte.load(tmp_path / "model.safetensors", network_of(tmp_path, CODE.replace(*edit), monkeypatch))
