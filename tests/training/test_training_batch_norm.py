"""BatchNorm at the end of training: frozen statistics, and statistics of the quantized network."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks_to_train import SharedNet, train
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte.training import freeze_batch_norm, reestimate_batch_norm

X = seeded((16, 4, 6, 6))
BATCHES = [seeded((8, 4, 6, 6), seed) for seed in range(5)]


def _prepared(config: str = "w2a2") -> nn.Module:
    return subbyte.prepare_qat(randomized(SharedNet()), config, X, first_last="int8")


class _Recorded(nn.Module):
    """Keeps what a BatchNorm is given."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.given: list[Tensor] = []
        norm.register_forward_pre_hook(lambda module, args: self.given.append(args[0].detach().clone()))


def test_frozen_statistics_stay_and_the_rest_learns() -> None:
    model = _prepared()
    train(model, X, steps=2)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    model.train()
    freeze_batch_norm(model)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(X), torch.arange(16) % 5).backward()
        optimizer.step()
    after = model.state_dict()
    for name in before:
        if "running" in name or "num_batches" in name:
            assert torch.equal(after[name], before[name]), name
    for name in ("bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias", "conv1.weight", "conv1.bias"):
        assert not torch.equal(after[name], before[name]), name
    with torch.no_grad():
        assert torch.equal(subbyte.convert(model)(X), model.eval()(X))


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_gradients_of_a_frozen_batch_norm_are_those_of_one_in_eval(granularity: str) -> None:
    """Against the same arithmetic in plain PyTorch: the fake-quantized weight, then a BatchNorm in eval()."""
    fields = {"weight": {"dtype": ["int4"], "granularity": [granularity]}}
    model = randomized(nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)))
    prepared = subbyte.prepare_qat(model, {"op_type_dict": {"Conv2d": fields}, "approach": "weight_only"}, X).train()
    freeze_batch_norm(prepared)
    conv, norm = prepared[0], prepared[1]
    prepared(X).square().sum().backward()
    found = {name: p.grad.clone() for name, p in prepared.named_parameters() if "quantizer" not in name}
    prepared.zero_grad()
    weight = conv.fake_weight(conv.weight, norm)
    y = F.conv2d(X, weight, conv.bias)
    F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, False).square().sum().backward()
    wanted = {name: p.grad for name, p in prepared.named_parameters() if "quantizer" not in name}
    assert wanted.keys() == found.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


def test_training_and_evaluation_see_one_network_once_statistics_are_frozen() -> None:
    model = _prepared("w4a4").train()
    freeze_batch_norm(model)
    with torch.no_grad():
        frozen = model(X)
        torch.testing.assert_close(frozen, model.eval()(X), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("config", ["w2a2", "w4", "w4a4:dynamic"])
def test_new_statistics_are_the_averages_of_those_of_batches(config: str) -> None:
    model = _prepared(config)
    train(model, X)
    seen = {name: _Recorded(model.get_submodule(name)) for name in ("bn1", "bn2")}
    reestimate_batch_norm(model, BATCHES)
    for name, recorded in seen.items():
        norm = model.get_submodule(name)
        assert len(recorded.given) == len(BATCHES)
        means = torch.stack([x.mean((0, 2, 3)) for x in recorded.given]).mean(0)
        variances = torch.stack([x.var((0, 2, 3)) for x in recorded.given]).mean(0)
        torch.testing.assert_close(norm.running_mean, means)
        torch.testing.assert_close(norm.running_var, variances)
    with torch.no_grad():
        assert torch.equal(subbyte.convert(model)(X), model.eval()(X))


def test_the_first_batch_norm_is_given_what_the_quantized_convolution_computes() -> None:
    model = _prepared()
    model.bn1.running_mean.add_(7)
    reestimate_batch_norm(model, [X])
    conv = model.conv1
    grid, scale = next(iter(conv.input_quantizers)).snap(X)
    weight = conv.weight_quantizer.fake(conv.weight.detach())
    y = F.conv2d(grid * scale, weight, conv.bias, padding=1)
    torch.testing.assert_close(model.bn1.running_mean, y.mean((0, 2, 3)).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.bn1.running_var, y.var((0, 2, 3)).detach(), rtol=1e-4, atol=1e-5)


def test_nothing_else_changes() -> None:
    model = _prepared()
    train(model, X)
    model.conv1.eval()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    modes = {name: module.training for name, module in model.named_modules()}
    reestimate_batch_norm(model, BATCHES)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"bn{index}.running_{kind}" for index in (1, 2) for kind in ("mean", "var")}
    assert torch.equal(torch.get_rng_state(), random)
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_dropout_is_off_while_statistics_are_found() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(6)).train()
    x = seeded((64, 6))
    reestimate_batch_norm(model, x)
    torch.testing.assert_close(model[1].running_mean, x.mean(0))


def test_what_has_no_meaning() -> None:
    plain = subbyte.prepare_qat(nn.Sequential(nn.Linear(4, 4)), "w4a4", seeded((8, 4)))
    for call in (freeze_batch_norm, lambda model: reestimate_batch_norm(model, X)):
        with pytest.raises(subbyte.ModelError, match="no BatchNorm with running statistics"):
            call(plain)
    model = _prepared()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(subbyte.CalibrationError, match="needs data"):
        reestimate_batch_norm(model, None)
    with pytest.raises(subbyte.CalibrationError, match="empty"):
        reestimate_batch_norm(model, [])
    weightless = _prepared("w4")
    with pytest.raises(subbyte.CalibrationError, match="NaN or infinity"):
        reestimate_batch_norm(weightless, torch.full_like(X, torch.nan))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
