"""What would fail late is told before the first step."""

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

X, Y = seeded((32, 4, 6, 6)), torch.arange(32) % 5
STAGES = [{"at": 0.3, "config": "w4a4"}, {"at": 0.6, "config": "w2a2"}]


def _plain() -> nn.Module:
    return randomized(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)))


def _train(model: Any, steps: list[int] | None = None, **options: Any) -> Any:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if steps is not None:
            steps.append(len(steps))
        return F.cross_entropy(output, target)

    given: dict[str, Any] = {"loss_fn": loss, "loader": DataLoader(TensorDataset(X, Y), 8), "epochs": 2, "data": X}
    return subbyte.train(model, **(given | options))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"freeze_batch_norm": 0.5}, subbyte.ConfigError, "freeze_batch_norm: the model has no BatchNorm"),
        ({"reestimate_batch_norm": True}, subbyte.ConfigError, "reestimate_batch_norm: the model has no BatchNorm"),
        (
            {"stages": STAGES, "data": seeded((8, 3, 6, 6))},
            subbyte.CalibrationError,
            r"does not run on calibration batch 0 \(tensors of shapes \[\(8, 3, 6, 6\)\]\)",
        ),
        ({"stages": STAGES, "data": 3}, subbyte.CalibrationError, "a tensor or an iterable of batches"),
        ({"stages": STAGES, "data": []}, subbyte.CalibrationError, "empty"),
        (
            {"lr_schedule": {"OneCycleLR": {"max_lr": 0.1, "total_steps": 5}}},
            subbyte.ConfigError,
            "lr_schedule: OneCycleLR fails in step 6 of 8: .*total steps is 5",
        ),
        (
            {"lr_schedule": {"CosineAnnealingLR": {"T_max": "all"}}},
            subbyte.ConfigError,
            "lr_schedule: CosineAnnealingLR fails in step 1 ",
        ),
        ({"loss_fn": None}, subbyte.ConfigError, "loss_fn: a function of output and target is expected, not None"),
        (
            {"loss_fn": torch.nn.CrossEntropyLoss},
            subbyte.ConfigError,
            r"loss_fn: CrossEntropyLoss is a class; make one: CrossEntropyLoss\(\)",
        ),
        ({"evaluate": 3}, subbyte.ConfigError, "evaluate: a function of the model is expected, not 3"),
        ({"checkpoint": 3}, subbyte.ConfigError, "checkpoint: the path of a file is expected, not 3"),
        ({"checkpoint": "no/such/folder/c.pt"}, subbyte.CheckpointError, "cannot keep the training in no/such/folder"),
        ({"checkpoint": "/proc/c.pt"}, subbyte.CheckpointError, "cannot keep the training in /proc/c.pt"),
        ({"checkpoint": "/"}, subbyte.CheckpointError, "cannot keep the training in /: it is a folder"),
        ({"loader": X}, subbyte.ConfigError, r"loader: batches \(inputs, target\) are expected, not a Tensor"),
        ({"loader": TensorDataset(X, Y)}, subbyte.ConfigError, "expected, not a TensorDataset; give a DataLoader"),
    ],
)
def test_before_the_first_step(options: dict[str, Any], error: type[Exception], message: str) -> None:
    steps: list[int] = []
    with pytest.raises(error, match=message):
        _train(subbyte.prepare_qat(_plain(), "w8a8", X), steps, **options)
    assert not steps


def test_models_that_cannot_be_trained() -> None:
    prepared = subbyte.prepare_qat(_plain(), "w4a4", X)
    for model, message in (
        (None, "a torch.nn.Module, not a NoneType"),
        (subbyte.convert(prepared), "is converted, so there is nothing to train"),
        (nn.DataParallel(prepared), "in a DataParallel is trained by a loop of one's own"),
        (prepared.requires_grad_(False), "nothing to train: no parameter"),
        (nn.ReLU(), "nothing to train: no parameter"),
    ):
        with pytest.raises(subbyte.ModelError, match=message):
            _train(model)


def test_a_loss_without_gradient_and_a_batch_that_does_not_fit() -> None:
    with pytest.raises(subbyte.ConfigError, match="loss_fn: the loss has no gradient"):
        _train(_plain(), loss_fn=lambda output, target: F.cross_entropy(output.detach(), target))
    message = r"loader: the model does not run on the batch of step 2 \(tensors of shapes \[\(8, 3, 6, 6\)\]\)"
    with pytest.raises(subbyte.ConfigError, match=message):
        _train(_plain(), loader=[(X[:8], Y[:8]), (seeded((8, 3, 6, 6)), Y[:8])])


def test_an_iterator_of_calibration_data_serves_every_stage_and_batch_norm() -> None:
    def run(data: Any) -> nn.Module:
        model = subbyte.prepare_qat(randomized(SharedNet()), "w8a8", X)
        return _train(model, data=data, stages=STAGES, reestimate_batch_norm=True).model

    once, again = run(iter(X.split(16))), run(X.split(16))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in once.state_dict().items())


def test_data_is_looked_at_without_a_trace() -> None:
    """The batch at the start moves no statistics, and what is random in training is as without it."""

    def epochs(**options: Any) -> list[Any]:
        model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
        loader = DataLoader(TensorDataset(X, Y), 8, shuffle=True)
        statistics = {"evaluate": lambda model: model.bn1.running_mean.sum()}
        before = torch.get_rng_state()
        found = [(each.loss, each.metric) for each in _train(model, loader=loader, **statistics, **options).history]
        assert torch.equal(torch.get_rng_state(), before)
        return found

    assert epochs(data=DataLoader(X, 8, shuffle=True), reestimate_batch_norm=True) == epochs(data=None)


def test_divergence_is_not_blamed_on_the_data() -> None:
    layers = nn.Linear(X[0].numel(), 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)
    model = subbyte.prepare_qat(randomized(nn.Sequential(nn.Flatten(), *layers)), "w8a8", X)
    turned: list[Tensor] = []

    def turn(_: Tensor) -> None:
        for each in () if turned else (model[1], model[3]):  # finite, which what comes of them is not
            turned.extend((each.weight.data.mul_(1e25), each.weight_quantizer.scale.data.mul_(1e25)))

    model[1].bias.register_post_accumulate_grad_hook(turn)
    message = "training diverged before the stage that begins after step 1: the scale of .* left its range in step 1"
    with pytest.raises(subbyte.TrainingError, match=message):
        _train(model, stages=[{"at": 0.1, "config": "w4a4"}], optimizer={"SGD": {"lr": 0.0}})


def test_metrics_that_are_not_a_number_are_not_the_best() -> None:
    def run(metrics: list[float], higher_is_better: bool) -> float:
        given = iter(metrics)
        model = subbyte.prepare_qat(_plain(), "w8a8", X)
        return _train(
            model, epochs=len(metrics), keep="best", evaluate=lambda _: next(given), higher_is_better=higher_is_better
        ).metric

    nan = float("nan")
    assert run([nan, 0.3, nan, 0.2, nan], True) == 0.3
    assert run([nan, 0.3, nan, 0.2, nan], False) == 0.2
    with pytest.raises(subbyte.EvaluationError, match="the metric is NaN after every epoch"):
        run([nan, nan], True)


def test_a_checkpoint_leaves_nothing_beside_it(tmp_path: Path) -> None:
    _train(_plain(), checkpoint=tmp_path / "c.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]
    with pytest.raises(subbyte.ConfigError, match="no gradient"):
        _train(_plain(), loss_fn=lambda output, target: output.detach().sum(), checkpoint=tmp_path / "d.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]
