"""Learned scales under optimizers whose steps have a size of their own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks_to_train import SharedNet
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.training import RelativeSteps, requantize

X, TARGET = seeded((16, 4, 6, 6)), torch.arange(16) % 5


def _prepared(config: str = "w4a4") -> nn.Module:
    return subbyte.prepare_qat(randomized(SharedNet()), config, X, first_last="int8").train()


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(X), TARGET).backward()
    optimizer.step()


def test_a_scale_moves_in_proportion_and_all_else_as_ever() -> None:
    model = _prepared()
    plain = copy.deepcopy(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ours, theirs = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, plain))
    RelativeSteps(ours, model)
    _step(model, ours)
    _step(plain, theirs)
    expected = plain.state_dict()
    for name, parameter in model.named_parameters():
        own = expected[name] - before[name]
        wanted = before[name] + before[name].abs() * own if name.endswith("scale") else expected[name]
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-6, atol=0.0)
    own, ours = expected["conv1.weight_quantizer.scale"], model.conv1.weight_quantizer.scale.detach()
    assert float(own.min()) < 0.0 < float(ours.min())


def test_it_can_be_taken_off() -> None:
    model = _prepared()
    plain = copy.deepcopy(model)
    ours, theirs = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, plain))
    RelativeSteps(ours, model).remove()
    _step(model, ours)
    _step(plain, theirs)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "optimizer", ["Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Rprop", "SGD"]
)
def test_the_loop_takes_them_where_they_are_needed(optimizer: str) -> None:
    model = _prepared()
    by_hand = copy.deepcopy(model)
    subbyte.train(model, [(X, TARGET)] * 2, F.cross_entropy, epochs=1, optimizer={optimizer: {"lr": 0.01}})
    chosen = getattr(torch.optim, optimizer)(by_hand.parameters(), lr=0.01)
    if optimizer != "SGD":
        RelativeSteps(chosen, by_hand)
    for _ in range(2):
        _step(by_hand, chosen)
    assert all(torch.equal(value, by_hand.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("optimizer", "asked"), [("SGD", True), ("Adam", False)])
def test_the_loop_does_as_it_is_asked(optimizer: str, asked: bool) -> None:
    model = _prepared()
    by_hand = copy.deepcopy(model)
    plan = {"optimizer": {optimizer: {"lr": 0.02}}, "relative_steps": asked}
    subbyte.train(model, [(X, TARGET)], F.cross_entropy, epochs=2, **plan)
    steps = getattr(torch.optim, optimizer)(by_hand.parameters(), lr=0.02)
    if asked:
        RelativeSteps(steps, by_hand)
    for _ in range(2):
        _step(by_hand, steps)
    assert all(torch.equal(value, by_hand.state_dict()[name]) for name, value in model.state_dict().items())


def test_stages_bring_scales_that_take_them_too() -> None:
    model = _prepared("w4")
    by_hand = copy.deepcopy(model)
    subbyte.train(
        model, [(X, TARGET)] * 4, F.cross_entropy, epochs=1, data=X, optimizer={"Adam": {"lr": 0.01}},
        stages=[{"at": 0.5, "config": "w4a4"}],
    )  # fmt: skip
    chosen = torch.optim.Adam(by_hand.parameters(), lr=0.01)
    RelativeSteps(chosen, by_hand)
    new: list[nn.Parameter] = []
    for step in range(4):
        if step == 2:
            new = requantize(by_hand, "w4a4", X)
            chosen.param_groups[0]["params"].extend(new)
            kept = [scale.detach().clone() for scale in new]
        _step(by_hand, chosen)
    assert all(torch.equal(value, by_hand.state_dict()[name]) for name, value in model.state_dict().items())
    assert len(new) > 2
    assert all(bool(((scale - was).abs() < 0.03 * was).all()) for scale, was in zip(new, kept, strict=True))


@pytest.mark.parametrize("start", [-0.01, 0.0, 1e-9])
def test_a_scale_that_is_too_small_can_come_back(start: float) -> None:
    model = _prepared()
    quantizer = model.conv2.weight_quantizer
    with torch.no_grad():
        quantizer.scale[0] = start
    optimizer = torch.optim.SGD([quantizer.scale], lr=1.0)
    RelativeSteps(optimizer, model)
    for _ in range(60):
        quantizer.scale.grad = torch.full_like(quantizer.scale, -0.1)
        optimizer.step()
    smallest = quantizer.smallest_scale[0]
    torch.testing.assert_close(quantizer.scale[0].detach(), smallest * 1.1**60, rtol=1e-4, atol=0.0)


def test_one_optimizer_takes_them_once_for_a_model() -> None:
    model, other = _prepared(), _prepared()
    optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()], lr=0.01)
    steps = RelativeSteps(optimizer, model)
    RelativeSteps(optimizer, other)
    with pytest.raises(subbyte.ConfigError, match="already"):
        RelativeSteps(optimizer, model)
    steps.remove()
    RelativeSteps(optimizer, model)


def test_a_network_trains_from_scratch_by_adam_with_int8_outside() -> None:
    torch.manual_seed(0)
    model = subbyte.prepare_qat(SharedNet(), "w4a4", X, first_last="int8")
    result = subbyte.train(model, [(X, TARGET)] * 100, F.cross_entropy, epochs=1, optimizer={"AdamW": {"lr": 0.01}})
    scales = [value for name, value in model.named_parameters() if name.endswith("scale")]
    assert all(bool((scale > 0).all()) for scale in scales)
    with torch.no_grad():
        assert float(F.cross_entropy(result.model(X), TARGET)) < 0.5


def test_a_float_model_has_no_scales() -> None:
    model = SharedNet()
    with pytest.raises(subbyte.ModelError, match="not quantized"):
        RelativeSteps(torch.optim.Adam(model.parameters()), model)
