"""A training that fails says which scale left its range first."""

import re

import pytest
import torch
from networks_to_train import SharedNet, train

import subbyte
from networks import randomized, seeded
from subbyte.adaptor.pytorch.state import state_of
from subbyte.training import RangeMonitor

X = seeded((16, 4, 6, 6))


def test_it_names_the_scale_that_left_first() -> None:
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
    monitor = RangeMonitor(model)
    loss = train(model, X, steps=1)
    monitor.check(loss)
    assert monitor.departures == []
    with torch.no_grad():
        model.conv2.weight_quantizer.scale[3] *= -1
    monitor.check(loss)
    with torch.no_grad():
        model.head.weight_quantizer.scale.fill_(torch.nan)
    message = "failed in step 3: the scale of the weight of conv2 left its range in step 2: it is -.*1 more followed"
    with pytest.raises(subbyte.TrainingError, match=message):
        monitor.check(loss)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_loss_that_is_not_finite_blames_no_scale(steps: int) -> None:
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
    monitor = RangeMonitor(model)
    loss = train(model, X.log() if steps else X, steps=steps or 1)
    if steps:  # the optimizer has made every scale and weight what the loss was
        assert not torch.isfinite(loss)
        assert not torch.isfinite(model.head.weight_quantizer.scale).any()
    with pytest.raises(subbyte.TrainingError, match=r"step 1: .*though every learned scale was in its range"):
        monitor.check(torch.tensor(torch.nan))


def test_a_scale_that_left_before_the_loss_is_blamed() -> None:
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
    monitor = RangeMonitor(model)
    with torch.no_grad():
        model.head.weight_quantizer.scale.mul_(1e5)
    monitor.check()
    train(model, X.log(), steps=1)
    with pytest.raises(subbyte.TrainingError, match="step 2: the scale of the weight of head left its range in step 1"):
        monitor.check(torch.tensor(torch.nan))


def test_a_model_that_is_not_to_be_trained() -> None:
    with pytest.raises(subbyte.ModelError, match="not prepared for training"):
        RangeMonitor(subbyte.prepare(randomized(SharedNet()), "w4a4", X))


@pytest.mark.parametrize("config", ["w4a4", "wbint1", "wternarya8:dynamic"])
@pytest.mark.parametrize("before", [False, True])
def test_a_weight_that_is_no_number_is_named(config: str, before: bool) -> None:
    model = subbyte.prepare_qat(randomized(SharedNet()), config, X)
    monitor = None if before else RangeMonitor(model)
    with torch.no_grad():
        model.conv2.weight[0, 0, 0, 0] = torch.nan
    monitor = monitor or RangeMonitor(model)
    with pytest.raises(subbyte.TrainingError, match=f"the weight of conv2 holds NaN .* since step {int(not before)};"):
        monitor.check(torch.tensor(1.0))


@pytest.mark.parametrize("name", ["conv1.bias", "bn1.weight"])
def test_another_parameter_that_is_no_number_is_named(name: str) -> None:
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
    monitor = RangeMonitor(model)
    with torch.no_grad():
        model.get_parameter(name)[1] = torch.inf
    owner, kind = name.split(".")
    with pytest.raises(subbyte.TrainingError, match=f"the {kind} of {owner} holds NaN or infinity since step 1;"):
        monitor.check(torch.tensor(1.0))


def test_weights_of_fp16_whose_sum_it_could_not_hold() -> None:
    model = subbyte.prepare_qat(torch.nn.Sequential(torch.nn.Linear(64, 64)).half(), "wbint1")
    with torch.no_grad():
        model[0].weight.fill_(100.0)
    RangeMonitor(model).check()


@pytest.mark.parametrize("config", ["w4a4", "w8a8:dynamic", "wbint1", "wternarya4"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_is_not_converted(config: str, value: float) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model = subbyte.prepare_qat(net, config, seeded((8, 4)))
    with torch.no_grad():
        model[1].weight[0, 0] = value
    with pytest.raises(subbyte.TrainingError, match="the weight of op '1' holds NaN or infinity"):
        subbyte.convert(model)


@pytest.mark.parametrize("slot", ["conv2.weight_quantizer", "input", "sum"])
@pytest.mark.parametrize("training", [True, False])
def test_the_forward_after_it_names_the_scale(slot: str, training: bool) -> None:
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
    keys = {"input": "conv2", "sum": "add"}
    if slot in keys:
        state = state_of(model)
        (key, *_) = next(found for name, found in state.input_keys.items() if keys[slot] in name)
        quantizer = state.quantizers[key]
    else:
        quantizer = model.get_submodule(slot)
    with torch.no_grad():
        quantizer.scale.fill_(torch.nan)
    with pytest.raises(subbyte.TrainingError, match=f"what {re.escape(quantizer.name)} learned is not finite"):
        model.train(training)(X)


def test_a_scale_below_zero_counts_as_its_smallest_and_comes_back() -> None:
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X)
    quantizer = model.head.weight_quantizer
    start = quantizer.scale.detach().clone()
    with torch.no_grad():
        quantizer.scale.neg_()
    assert torch.equal(quantizer.params.scale, start * 1e-3)
    train(model, X, steps=1)
    assert quantizer.scale.grad.abs().sum() > 0
    with torch.no_grad():
        assert torch.equal(subbyte.convert(model)(X), model.eval()(X))


def test_a_scale_that_is_no_number_is_not_converted() -> None:
    prepared = subbyte.prepare_qat(torch.nn.Sequential(torch.nn.Linear(4, 4)), "w4a4", torch.randn(8, 4))
    with torch.no_grad():
        prepared[0].weight_quantizer.scale[1] = torch.nan
    with pytest.raises(subbyte.TrainingError, match=r"what 0 learned is not finite.*RangeMonitor"):
        subbyte.convert(prepared)


def test_parts_of_the_same_name_are_all_watched() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.LSTM(4, 4), torch.nn.LSTM(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)[0])[0]

    for one in ("a", "b"):
        model = subbyte.prepare_qat(Both(), "w4a8:dynamic", seeded((3, 2, 4)))
        monitor = RangeMonitor(model)
        with torch.no_grad():
            weights = (p for name, p in model.named_parameters() if name.startswith(f"{one}.") and p.ndim == 2)
            next(weights).fill_(torch.nan)
        with pytest.raises(subbyte.TrainingError, match="holds NaN"):
            monitor.check(1.0)


def test_a_frozen_mask_of_infinities_is_none_of_its_business() -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.mask = torch.nn.Parameter(torch.tensor([0.0, 0.0, 0.0, -torch.inf]), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.linear(x) + self.mask).softmax(-1)

    model = subbyte.prepare_qat(Masked(), "w4a4", seeded((8, 4)))
    monitor = RangeMonitor(model)
    monitor.check(model(seeded((8, 4))).square().sum())
    model.mask.requires_grad_()
    with pytest.raises(subbyte.TrainingError, match="the mask of the model holds NaN or infinity since step 2"):
        monitor.check(1.0)
