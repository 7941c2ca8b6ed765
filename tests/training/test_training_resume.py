"""A damaged file is no training, and one that cannot be written leaves what was there."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks_to_train import SharedNet

import subbyte
from networks import randomized, seeded

X, Y = seeded((16, 4, 6, 6)), torch.arange(16) % 5


def _train(file: Path, epochs: int = 1) -> Any:
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
    return subbyte.train(model, [(X, Y)], F.cross_entropy, epochs=epochs, checkpoint=file)


def test_flipped_bytes_are_noticed_wherever_they_change_something(tmp_path: Path) -> None:
    file = tmp_path / "kept.pt"
    whole = _train(file).model.state_dict()
    contents, silent = file.read_bytes(), 0
    for place in range(50, len(contents) - 8, len(contents) // 12):
        flipped = bytes(byte ^ 0xFF for byte in contents[place : place + 8])
        file.write_bytes(contents[:place] + flipped + contents[place + 8 :])
        try:
            found = _train(file).model.state_dict()
        except subbyte.CheckpointError as error:
            assert "keeps no training that can be taken up" in str(error)  # noqa: PT017  (another place, another end)
        else:
            silent += 1
            assert all(torch.equal(value, whole[name]) for name, value in found.items())
    assert silent < 6  # what lies between the tensors


@pytest.mark.parametrize(
    "contents",
    [b"", b"hello" * 100, {"training": {}}, [1, 2], {"training": 3, "loader": []}, {"a": 1}, torch.zeros(3)],
)
def test_files_of_something_else(contents: Any, tmp_path: Path) -> None:
    file = tmp_path / "kept.pt"
    if isinstance(contents, bytes):
        file.write_bytes(contents)
    else:
        torch.save(contents, file)
    with pytest.raises(subbyte.CheckpointError, match="keeps no training that can be taken up"):
        _train(file)


def test_steps_are_counted_on(tmp_path: Path) -> None:
    told = [0.0, 1.0, float("inf"), float("nan")]

    def loss(output: Any, target: Any) -> torch.Tensor:
        factor = told.pop(0)
        if factor == float("inf"):
            raise KeyboardInterrupt
        return factor * F.cross_entropy(output, target)

    for error in (KeyboardInterrupt, subbyte.TrainingError):
        model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
        with pytest.raises(error, match="failed in step 3: the loss" if error is subbyte.TrainingError else None):
            subbyte.train(model, [(X, Y)], loss, epochs=3, checkpoint=tmp_path / "kept.pt")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kept.pt"

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(subbyte.CheckpointError, match="No space left"):
        _train(file)
    assert not list(tmp_path.iterdir())
