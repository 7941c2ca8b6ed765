"""`subbyte.train`: plain PyTorch's steps, stages, resuming bit by bit, and what goes wrong."""

import copy
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
from subbyte.training import Progress, RelativeSteps, TrainingPlan, run_training, set_progress

X, Y = seeded((32, 4, 6, 6)), torch.arange(32) % 5
STAGES = [{"at": 0.3, "config": "w4a4"}, {"at": 0.6, "config": "w2a2"}]
PLAN: dict[str, Any] = {
    "epochs": 4, "optimizer": {"SGD": {"lr": 0.05, "momentum": 0.9}}, "lr_schedule": {"OneCycleLR": {"max_lr": 0.05}},
}  # fmt: skip


def _prepared(config: str = "w4a4", **options: Any) -> nn.Module:
    return subbyte.prepare_qat(randomized(SharedNet()), config, X, first_last="int8", **options)


def _loader(**options: Any) -> DataLoader:
    return DataLoader(TensorDataset(X, Y), 8, shuffle=True, **options)


def _accuracy(model: nn.Module) -> float:
    return float((model(X).argmax(1) == Y).float().mean())


def _same(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return one.state_dict().keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in one.state_dict().items()
    )


def test_it_takes_the_steps_that_a_loop_by_hand_takes() -> None:
    batches = [(X[:8], Y[:8]), (X[8:16], Y[8:16])]
    model, by_hand = _prepared(), _prepared()
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-2)
    RelativeSteps(optimizer, by_hand)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    by_hand.train()
    losses = []
    for _ in range(3):
        for inputs, target in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(by_hand(inputs), target)
            loss.backward()
            nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
    result = subbyte.train(
        model, batches, F.cross_entropy, epochs=3, optimizer={"Adam": {"lr": 1e-2}}, lr_schedule="CosineAnnealingLR",
        clip_gradients=0.5,
    )  # fmt: skip
    assert result.model is model
    assert not model.training
    assert _same(model, by_hand)
    assert [epoch.loss for epoch in result.history] == [sum(losses[i : i + 2]) / 2 for i in (0, 2, 4)]
    assert [epoch.number for epoch in result.history] == [1, 2, 3]
    assert result.metric is None


def test_a_float_model_is_trained_as_well() -> None:
    model = randomized(SharedNet())
    before = F.cross_entropy(model(X), Y).item()
    result = subbyte.train(model, _loader(), F.cross_entropy, evaluate=_accuracy, **PLAN)
    assert result.history[-1].loss < before
    assert result.metric == result.history[-1].metric == _accuracy(model)


def test_stages_follow_one_another_and_the_result_converts() -> None:
    seen: list[tuple[int, str]] = []
    model = _prepared("w8a8")

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append((len(seen), model.conv2.weight_spec.dtype.name))
        return F.cross_entropy(output, target)

    result = subbyte.train(model, _loader(), loss, data=X, stages=STAGES, evaluate=_accuracy, **PLAN)
    assert [name for _, name in seen] == ["int8"] * 5 + ["int4"] * 5 + ["int2"] * 6
    assert [epoch.stage for epoch in result.history] == [0, 1, 2, 2]
    with torch.no_grad():
        assert torch.equal(subbyte.convert(model)(X), model(X))


def test_activations_later_are_learned_from_then_on() -> None:
    model = _prepared("w4")
    subbyte.train(model, _loader(), F.cross_entropy, data=X, stages=[{"at": 0.5, "config": "w4a4"}], **PLAN)
    scales = [each.scale for each in model.subbyte_state.quantizers.values()]
    assert scales
    fresh = _prepared("w4a4")
    theirs = [each.scale for each in fresh.subbyte_state.quantizers.values()]
    assert all(isinstance(scale, nn.Parameter) for scale in scales)
    assert not any(torch.equal(one, other) for one, other in zip(scales, theirs, strict=True))


@pytest.mark.parametrize(("stop", "generator"), [(1, False), (3, True), (4, False)])
def test_an_interrupted_training_goes_on_bit_for_bit(stop: int, generator: bool, tmp_path: Path) -> None:
    file, calls, teacher = tmp_path / "kept.pt", [0], randomized(SharedNet(), 3)

    def run(interrupted: bool, checkpoint: Path | None) -> Any:
        def evaluate(model: nn.Module) -> float:
            calls[0] += 1
            if interrupted and calls[0] == stop:
                raise KeyboardInterrupt
            return _accuracy(model) + float(torch.rand(())) * 1e-3  # what is random goes on, too

        own = {"generator": torch.Generator().manual_seed(4)} if generator else {}
        return subbyte.train(
            _prepared("w8"), _loader(**own), F.cross_entropy, data=X, evaluate=evaluate, checkpoint=checkpoint,
            stages=STAGES, distill=teacher, freeze_batch_norm=0.7, reestimate_batch_norm=True, keep="best", **PLAN,
        )  # fmt: skip

    whole = run(False, None)
    calls[0] = 0
    with pytest.raises(KeyboardInterrupt) as interrupt:
        run(True, file)
    assert file.exists() is (stop > 1)
    notes = getattr(interrupt.value, "__notes__", [])
    assert notes == ([f"epochs kept in {file}: {stop - 1}; the same call goes on there"] if stop > 1 else [])
    again = run(False, file)
    assert _same(again.model, whole.model)
    assert [(e.loss, e.metric, e.stage) for e in again.history] == [(e.loss, e.metric, e.stage) for e in whole.history]
    assert again.metric == whole.metric
    finished = run(False, file)  # nothing is left to do
    assert _same(finished.model, whole.model)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kept.pt"
    subbyte.train(_prepared(), _loader(), F.cross_entropy, checkpoint=file, **PLAN)
    other = PLAN | {"epochs": 5}
    with pytest.raises(subbyte.CheckpointError, match="another training: epochs was 4 and is 5; steps was 16 and is"):
        subbyte.train(_prepared(), _loader(), F.cross_entropy, checkpoint=file, **other)
    with pytest.raises(subbyte.CheckpointError, match=r"another training: quantizer .* was .* and is not there"):
        subbyte.train(_prepared("w4"), _loader(), F.cross_entropy, checkpoint=file, **PLAN)


@pytest.mark.parametrize(("higher_is_better", "chosen"), [(True, 3), (False, 4)])
def test_the_best_of_the_last_configuration_comes_back(higher_is_better: bool, chosen: int) -> None:
    metrics = iter([0.9, 0.8, 0.7, 0.1])  # the first two are of more bits
    states = []

    def evaluate(model: nn.Module) -> float:
        states.append(copy.deepcopy(model.state_dict()))
        return next(metrics)

    model = _prepared("w4a4")
    saved: list[int] = []
    result = run_training(
        model, _loader(), F.cross_entropy,
        TrainingPlan(
            stages=[{"at": 0.5, "config": "w2a2"}], keep="best", higher_is_better=higher_is_better, **PLAN
        ),
        data=X, evaluate=evaluate, save=lambda model: saved.append(len(states)),
    )  # fmt: skip
    assert result.metric == [0.9, 0.8, 0.7, 0.1][chosen - 1]
    assert all(torch.equal(value, states[chosen - 1][name]) for name, value in model.state_dict().items())
    assert saved == ([3] if higher_is_better else [3, 4])


def test_a_seed_gives_the_same_training_and_leaves_random_state_alone() -> None:
    models = [_prepared() for _ in range(3)]
    state = torch.get_rng_state()
    seeds = zip(models, (1, 1, 2), strict=True)
    results = [subbyte.train(model, _loader(), F.cross_entropy, seed=seed, **PLAN) for model, seed in seeds]
    assert torch.equal(torch.get_rng_state(), state)
    assert _same(results[0].model, results[1].model)
    assert not _same(results[0].model, results[2].model)


@pytest.mark.filterwarnings("ignore::subbyte.errors.LostSignWarning")  # behind a ReLU, for lack of a better network
def test_scheduled_gradients_are_told_of_progress() -> None:
    rules = {"types": {"bint1": {"weight": "ir_net", "activation": "ir_net"}}}
    model = _prepared("w1a1", training=rules)
    seen = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(float(model.conv2.weight_quantizer.progress))
        return F.cross_entropy(output, target)

    subbyte.train(model, _loader(), loss, **PLAN)
    assert seen == pytest.approx([step / 15 for step in range(16)])
    set_progress(model, 0.5)


def test_batch_norm_freezes_in_the_midst_of_an_epoch() -> None:
    model = _prepared()
    moving = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        moving.append(model.bn1.training)
        return F.cross_entropy(output, target)

    subbyte.train(model, _loader(), loss, freeze_batch_norm=0.35, **PLAN)
    assert moving == [True] * 6 + [False] * 10  # 0.35 of 16 steps


def test_progress_is_told_step_by_step() -> None:
    told: list[Progress] = []
    run_training(_prepared(), _loader(), F.cross_entropy, TrainingPlan(**PLAN), evaluate=_accuracy, watch=told.append)
    steps = [(1 + step // 4, step + 1, step // 4) for step in range(16)]
    ends = [(epoch, 4 * epoch, epoch) for epoch in range(1, 5)]
    assert sorted((each.epoch, each.step, len(each.history)) for each in told) == sorted(steps + ends)
    assert {(each.epochs, each.steps) for each in told} == {(4, 16)}
    assert told[4].history[-1].metric is not None  # after the first epoch


def test_inputs_by_name_and_in_pairs() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            return self.layer(x + other)

    x = seeded((8, 4))
    for inputs in ((x, x), {"x": x, "other": x}):
        model = subbyte.prepare_qat(randomized(Sum()), "w4a4", [inputs])
        before = copy.deepcopy(model.state_dict())
        subbyte.train(model, [(inputs, torch.zeros(8, dtype=torch.int64))], F.cross_entropy, epochs=1)
        assert not torch.equal(model.layer.weight, before["layer.weight"])


def test_a_loss_that_is_not_finite_names_the_scale_that_left_first() -> None:
    model = _prepared()
    calls = [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls[0] += 1
        return F.cross_entropy(output, target) * (float("nan") if calls[0] == 7 else 1.0)

    def turn(scale: Tensor) -> None:
        if calls[0] == 6:
            scale.data.neg_()

    model.conv2.weight_quantizer.scale.register_post_accumulate_grad_hook(turn)
    message = "failed in step 7: the scale of the weight of conv2 left its range in step 6"
    with pytest.raises(subbyte.TrainingError, match=message):
        subbyte.train(model, _loader(), loss, epochs=2, optimizer={"SGD": {"lr": 1e-4}})
    with pytest.raises(subbyte.TrainingError, match="failed in step 1: the loss is not finite"):
        subbyte.train(randomized(SharedNet()), _loader(), lambda y, t: y.sum() * float("inf"), **PLAN)


def test_steps_are_counted_over_stages() -> None:
    calls = [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls[0] += 1
        return F.cross_entropy(output, target) * (float("nan") if calls[0] == 14 else 1.0)

    with pytest.raises(subbyte.TrainingError, match="failed in step 14"):
        subbyte.train(_prepared("w8a8"), _loader(), loss, data=X, stages=STAGES, **PLAN)


class _Longer(list):
    def __len__(self) -> int:
        return 9


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"loader": iter([])}, subbyte.ConfigError, "length of an epoch must be known"),
        ({"loader": []}, subbyte.ConfigError, "it is empty"),
        ({"loader": [X]}, subbyte.ConfigError, "a batch is a pair .*not Tensor"),
        ({"loader": [(X, Y, Y)]}, subbyte.ConfigError, "not 3 parts"),
        ({"loader": [("text", Y)]}, subbyte.ConfigError, "inputs are a tensor, .*not str"),
        ({"loader": _Longer([(X, Y)])}, subbyte.TrainingError, "gave 1 batches in epoch 1, and has a length of 9"),
        ({"loss_fn": lambda y, t: y}, subbyte.ConfigError, r"a loss is a tensor of one value, not \(8, 5\)"),
        ({"loss_fn": lambda y, t: 1.0}, subbyte.ConfigError, "a loss is a tensor of one value, not float"),
        ({"distill": "logits"}, subbyte.ConfigError, "a Distillation or a teacher"),
        ({"evaluate": lambda model: "good"}, subbyte.EvaluationError, "a metric is one number, not 'good'"),
        ({"keep": "best"}, subbyte.ConfigError, "needs a metric"),
        ({"stages": STAGES, "data": None}, subbyte.ConfigError, "stages: calibration data is needed"),
        ({"reestimate_batch_norm": True, "data": None}, subbyte.ConfigError, "batch_norm: calibration data is needed"),
        ({"stages": [{"at": 0.5, "config": "w4a4444"}]}, subbyte.ConfigError, "w4a4444"),
        ({"stages": [{"at": 0.99, "config": "w4a4"}]}, subbyte.ConfigError, "begins after the last of 16 steps"),
        ({"seed": -1}, subbyte.ConfigError, "seed"),
        ({"momentum": 1}, subbyte.ConfigError, "unknown key 'momentum'"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"loader": _loader(), "loss_fn": F.cross_entropy, "data": X} | PLAN | arguments
    with pytest.raises(error, match=message):
        subbyte.train(_prepared("w8a8"), **given)


def test_stages_need_a_prepared_model() -> None:
    with pytest.raises(subbyte.ModelError, match="not quantized"):
        subbyte.train(randomized(SharedNet()), _loader(), F.cross_entropy, data=X, stages=STAGES, **PLAN)
