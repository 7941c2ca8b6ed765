"""A training that fails says which scale left its range first."""

import pytest
import torch
from networks_to_train import SharedNet, train

import subbyte
from networks import randomized, seeded
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


def test_a_loss_that_is_not_finite() -> None:
    monitor = RangeMonitor(subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X))
    with pytest.raises(subbyte.TrainingError, match="every learned scale is in its range"):
        monitor.check(torch.tensor(torch.nan))


def test_a_model_that_learns_no_scale() -> None:
    with pytest.raises(subbyte.ModelError, match="learns no scale"):
        RangeMonitor(subbyte.prepare(randomized(SharedNet()), "w4a4", X))


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
