"""Plans of training: what is refused, and how optimizers and schedules are named."""

import pytest
import torch
from torch import nn

import subbyte
from subbyte.training import TrainingPlan
from subbyte.training.optimizers import lr_schedule_of, optimizer_of


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "epochs: it is missing"),
        ({"epochs": 0}, "epochs: input should be greater than 0, found 0"),
        ({"epochs": 1, "epoch": 2}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"epochs": 1, "optimizer": "Adamm"}, "optimizer: 'Adamm' is unknown; did you mean 'Adam'"),
        ({"epochs": 1, "optimizer": "LBFGS"}, "optimizer: 'LBFGS' is unknown"),
        ({"epochs": 1, "optimizer": 3}, "optimizer: a name or {name: options} is expected, not 3"),
        ({"epochs": 1, "optimizer": {"SGD": {"momentun": 1}}}, "'momentun'; did you mean 'momentum'"),
        ({"epochs": 1, "optimizer": {"SGD": {"lr": -1}}}, "optimizer SGD: Invalid learning rate: -1"),
        ({"epochs": 1, "lr_schedule": "OneCycleLR"}, "lr_schedule OneCycleLR: .*max_lr"),
        ({"epochs": 1, "lr_schedule": "StepsLR"}, "'StepsLR' is unknown; did you mean 'StepLR'"),
        ({"epochs": 1, "stages": [{"at": 1.0, "config": "w4a4"}]}, "stages.0.at: input should be less than 1"),
        ({"epochs": 1, "stages": [{"at": 0.5}]}, "stages.0.config: it is missing"),
        ({"epochs": 1, "stages": [{"at": 0.5, "confg": 1}]}, "unknown key 'confg'; did you mean 'config'"),
        ({"epochs": 1, "stages": [{"at": 0.5, "config": 4}]}, "a request is 'default', a shorthand"),
        (
            {"epochs": 1, "stages": [{"at": 0.5, "config": "w4a4"}, {"at": 0.5, "config": "w2a2"}]},
            "each begins later than the one before",
        ),
        ({"epochs": 1, "clip_gradients": 0}, "clip_gradients: .*greater than 0"),
        ({"epochs": 1, "freeze_batch_norm": 1.5}, "freeze_batch_norm: .*less than 1"),
        ({"epochs": 1, "keep": "first"}, "keep: .*'last' or 'best'"),
    ],
)
def test_what_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(subbyte.ConfigError, match=message):
        TrainingPlan(**fields)


def test_options_reach_the_optimizer() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = optimizer_of({"SGD": {"lr": 0.5, "momentum": 0.25}}, [parameter])
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["momentum"] == 0.25
    assert optimizer.param_groups[0]["params"][0] is parameter
    assert isinstance(optimizer_of("Adam", [parameter]), torch.optim.Adam)


@pytest.mark.parametrize(
    ("asked", "rates"),
    [
        ("CosineAnnealingLR", [1.0, 0.75, 0.25, 0.0]),
        ({"CosineAnnealingLR": {"T_max": 6}}, [1.0, 0.9330, 0.75, 0.5]),
        ({"StepLR": {"step_size": 2, "gamma": 0.1}}, [1.0, 1.0, 0.1, 0.1]),
    ],
)
def test_schedules_count_steps(asked: object, rates: list[float]) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=1.0)
    schedule = lr_schedule_of(asked, optimizer, steps=3)
    found = [optimizer.param_groups[0]["lr"]]
    for _ in range(3):
        optimizer.step()
        schedule.step()
        found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx(rates, abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"total_steps": 7}, {"epochs": 2, "steps_per_epoch": 4}])
def test_one_cycle_knows_how_long_it_is(options: dict[str, int]) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=1.0)
    schedule = lr_schedule_of({"OneCycleLR": {"max_lr": 0.1, **options}}, optimizer, steps=5)
    assert schedule.total_steps == {0: 5, 1: 7, 2: 8}[len(options)]
