"""A training is taken up as the very same one, or not at all."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks_to_train import SharedNet
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import subbyte
from networks import randomized, seeded
from subbyte.training.identity import differences, values_of

X, Y = seeded((32, 4, 6, 6)), (seeded((32,)) > 0).long()
STAGES = [{"at": 0.6, "config": "w3a3"}]


def _prepared(config: str = "w4a4", seed: int = 0, **options: Any) -> nn.Module:
    return subbyte.prepare_qat(randomized(SharedNet(), seed), config, X, **options)


def _train(model: nn.Module, checkpoint: Path | None = None, **options: Any) -> Any:
    loader = DataLoader(TensorDataset(X, Y), 8, shuffle=True)
    given: dict[str, Any] = {
        "loss_fn": F.cross_entropy, "epochs": 2, "optimizer": {"SGD": {"lr": 0.05}}, "stages": STAGES, "data": X,
    }  # fmt: skip
    return subbyte.train(model, loader, checkpoint=checkpoint, **(given | options))


def _wider_loss(output: Tensor, target: Tensor) -> Tensor:
    return 2 * F.cross_entropy(output, target)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a training of `_prepared()` with nothing else asked."""
    file = tmp_path_factory.mktemp("kept") / "kept.pt"
    _train(_prepared(), file)
    return file


@pytest.mark.parametrize(
    ("prepared", "options", "message"),
    [
        ({"config": "w2a4"}, {}, "quantizer .*weight_quantizer was int4 .*and is int2 "),
        ({"training": {"weight": "ewgs"}}, {}, r"trained by Lsq\(\) and is .*trained by Ewgs"),
        ({"training": {"start": "lsq"}}, {}, "training "),
        ({"first_last": "int8"}, {}, "quantizer "),
        ({"seed": 1}, {}, "the values of the model's weights at the start was [0-9a-f]{16} and is [0-9a-f]{16};"),
        ({}, {"seed": 5}, "seed was 0 and is 5;"),
        ({}, {"loss_fn": _wider_loss}, "loss_fn was cross_entropy and is _wider_loss;"),
        ({}, {"loss_fn": partial(_wider_loss)}, "loss_fn was cross_entropy and is _wider_loss;"),
        ({}, {"distill": randomized(SharedNet())}, "distill was None and is Distillation; distill: logits was not th"),
        ({}, {"optimizer": {"SGD": {"lr": 0.1}}}, "optimizer was .*0.05.* and is .*0.1"),
        ({}, {"stages": [{"at": 0.6, "config": "w2a2"}]}, "stages was .*w3a3.* and is .*w2a2"),
    ],
)
def test_another_training_is_refused(
    kept: Path, prepared: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    before = kept.read_bytes()
    with pytest.raises(subbyte.CheckpointError, match=f"keeps another training: .*{message}"):
        _train(_prepared(**prepared), kept, **options)
    assert kept.read_bytes() == before


def test_another_teacher_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kept.pt"
    _train(_prepared(), file, distill=randomized(SharedNet(), 1))
    with pytest.raises(subbyte.CheckpointError, match="another training: the values of the teacher's weights"):
        _train(_prepared(), file, distill=randomized(SharedNet(), 2))
    with pytest.raises(subbyte.CheckpointError, match=r"another training: distill: temperature was 4\.0 and is 2\.0"):
        _train(_prepared(), file, distill=subbyte.Distillation(randomized(SharedNet(), 1), temperature=2.0))


def test_a_stage_of_a_file_that_says_something_else_now_is_refused(tmp_path: Path) -> None:
    file, stage = tmp_path / "kept.pt", tmp_path / "stage.yaml"
    stages = [{"at": 0.6, "config": str(stage)}]
    stage.write_text("precision: w3a3\n")
    _train(_prepared(), file, stages=stages)
    _train(_prepared(), file, stages=stages)
    stage.write_text("precision: w2a2\n")
    with pytest.raises(subbyte.CheckpointError, match="another training: what ops get in stage 1 was"):
        _train(_prepared(), file, stages=stages)


def test_a_float_training_is_not_one_of_a_prepared_model(tmp_path: Path) -> None:
    file = tmp_path / "kept.pt"
    _train(randomized(SharedNet()), file, stages=[])
    with pytest.raises(subbyte.CheckpointError, match=r"another training: quantizer .* was not there and is "):
        _train(_prepared(), file, stages=[])


def test_functions_are_known_by_their_names(tmp_path: Path) -> None:
    """Of another process they lie at other addresses."""

    def decay() -> Any:
        def rate(step: int) -> float:
            return 0.9**step

        return rate

    def schedule(function: Any) -> dict[str, Any]:
        return {"lr_schedule": {"LambdaLR": {"lr_lambda": function}}}

    file = tmp_path / "kept.pt"
    first, again = decay(), decay()
    once = _train(_prepared(), file, **schedule(first)).history
    assert [epoch.loss for epoch in _train(_prepared(), file, **schedule(again)).history] == [e.loss for e in once]
    with pytest.raises(subbyte.CheckpointError, match="another training: lr_schedule "):
        _train(_prepared(), file, **schedule(lambda step: 1.0))


def test_values_of_any_layout_are_read() -> None:
    def model(values: Tensor) -> nn.Module:
        found = nn.Module()
        found.register_buffer("values", values)
        return found

    strided = torch.arange(10.0)[::2]
    assert values_of(model(strided)) == values_of(model(strided.clone()))
    assert values_of(model(torch.ones(1).expand(4))) == values_of(model(torch.ones(4)))
    assert values_of(model(torch.eye(3)[:, :2].T)) != values_of(model(torch.zeros(2, 3)))
    assert values_of(model(torch.tensor(True))) != values_of(model(torch.tensor(False)))


def test_values_are_told_apart_and_long_ones_are_not_repeated() -> None:
    one, other = randomized(SharedNet()), randomized(SharedNet())
    assert values_of(one) == values_of(other)
    other.bn1.running_mean[0] += 1e-3
    assert values_of(one) != values_of(other)
    assert differences({"a": "1", "b": "x" * 200, "c": "3"}, {"a": "1", "b": "y", "c": "4"}) == (
        "b is another; c was 3 and is 4"
    )
    assert differences({}, dict.fromkeys("abcde", "1")).endswith("c was not there and is 1; and 2 more")
    assert not differences({"a": "1"}, {"a": "1"})
