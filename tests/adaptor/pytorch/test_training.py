"""train() and eval() of a prepared model: statistics move, gradients flow, and back in eval() it is exact."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import subbyte
from networks import ResidualNet, randomized, seeded

X = seeded((8, 3, 7, 6))


@pytest.mark.parametrize("config", ["w8a8", "w4a4", "w1a8", "w4a8:dynamic", "w4"])
def test_gradients_reach_every_parameter(config: str) -> None:
    model = subbyte.prepare(randomized(ResidualNet()).train(), config, X)
    assert model.training
    model(X).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_gradients_of_eight_bits_are_near_those_of_float() -> None:
    model = randomized(ResidualNet())
    for norm in (model.bn1, model.bn2):
        norm.weight.data[-1], norm.momentum = 0.7, 1.0
    model.train()(X)  # the statistics that calibration sees are those of this batch
    prepared = subbyte.prepare(model.train(), "w8a8", X)
    for net in (model, prepared):
        net.zero_grad()
        net(X).square().sum().backward()
    for (name, want), (_, got) in zip(model.named_parameters(), prepared.named_parameters(), strict=True):
        similarity = F.cosine_similarity(want.grad.flatten(), got.grad.flatten(), 0)
        if "conv" not in name or "bias" not in name:  # a bias before BatchNorm has no gradient
            assert similarity > 0.95, (name, similarity)


def test_gradient_is_zero_where_values_are_clipped() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    prepared = subbyte.prepare(model, "w8a8", torch.ones(2, 4))
    prepared.train()
    x = torch.tensor([[0.5, 0.9, 5.0, -5.0]], requires_grad=True)
    prepared(x).sum().backward()
    assert (x.grad[0, :2] != 0).all()
    assert (x.grad[0, 2:] == 0).all()


def test_batch_norm_statistics_move_in_training_only() -> None:
    model = randomized(ResidualNet())
    prepared = subbyte.prepare(model, "w8a8", X)
    start = prepared.bn1.running_mean.clone()
    prepared.eval()(X)
    assert torch.equal(prepared.bn1.running_mean, start)
    prepared.train()(X)
    model.train()(X)
    assert not torch.equal(prepared.bn1.running_mean, start)
    torch.testing.assert_close(prepared.bn1.running_mean, model.bn1.running_mean, atol=0.02, rtol=0.02)
    torch.testing.assert_close(prepared.bn1.running_var, model.bn1.running_var, atol=0.05, rtol=0.05)
    assert int(prepared.bn1.num_batches_tracked) == int(model.bn1.num_batches_tracked) == 1


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor", "per_group(4)"])
def test_training_computes_what_eval_does_where_batch_norm_is_frozen(granularity: str) -> None:
    conf = subbyte.PostTrainingQuantConfig(
        op_type_dict={"Conv2d": {"weight": {"granularity": [granularity], "dtype": ["int4"]}}}
    )
    prepared = subbyte.prepare(randomized(ResidualNet()), conf, X)
    with torch.no_grad():
        want = prepared.eval()(X)
        prepared.train()
        for norm in (prepared.bn1, prepared.bn2):
            norm.eval()
        # Float sums may fall on the other side of a rounding boundary of the next op: a step, not more.
        assert (prepared(X) - want).abs().max() < 0.05 * want.abs().max()


def test_modes_go_back_and_forth() -> None:
    prepared = subbyte.prepare(randomized(ResidualNet()), "w4a4", X)
    with torch.no_grad():
        want = prepared(X)
        state = {name: value.clone() for name, value in prepared.state_dict().items()}
        for _ in range(2):
            assert not torch.equal(prepared.train()(X), want)
            prepared.load_state_dict(state)
            assert torch.equal(prepared.eval()(X), want)
            assert torch.equal(subbyte.convert(prepared)(X), want)


def test_converting_in_training_mode_gives_an_eval_model_and_leaves_the_prepared_one() -> None:
    prepared = subbyte.prepare(randomized(ResidualNet()).train(), "w4a4", X)
    converted = subbyte.convert(prepared)
    assert not any(module.training for module in converted.modules())
    assert prepared.training
    assert prepared.conv1.weight.requires_grad
    with torch.no_grad():
        assert torch.equal(converted(X), prepared.eval()(X))
    assert [name for name, _ in converted.named_parameters()] == ["conv1.bias", "conv2.bias", "linear.bias"]


class Checkpointed(nn.Module):
    """Recomputes a part in backward, which then runs outside of the model's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.head = ResidualNet(), nn.Linear(5, 5)
        self.run = _at_once

    def forward(self, x: Tensor) -> Tensor:
        y = self.run(self.part, x)
        return self.head(F.relu(y)) + y


def _at_once(part: nn.Module, x: Tensor) -> Tensor:
    return part(x)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("config", ["w4a4", "w4a8:dynamic", "w4"])
def test_a_checkpointed_submodule_has_the_same_gradients(config: str, reentrant: bool) -> None:
    x = X.clone().requires_grad_()
    prepared = subbyte.prepare(randomized(Checkpointed()).train(), config, X)
    gradients = []
    for run in (_at_once, partial(checkpoint, use_reentrant=reentrant)):
        prepared.run = run
        prepared.zero_grad()
        prepared(x).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in prepared.named_parameters()})
    for name, want in gradients[0].items():
        assert torch.equal(gradients[1][name], want), name


def test_training_learns() -> None:
    model = randomized(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)))
    x, target = seeded((256, 12), 3), seeded((256, 12), 3)[:, :4].abs()
    prepared = subbyte.prepare(model, "w4a8", x)

    def loss(net: nn.Module) -> float:
        with torch.no_grad():
            return float(F.mse_loss(net.eval()(x), target))

    before = loss(prepared)
    optimizer = torch.optim.SGD(prepared.parameters(), 0.05)
    prepared.train()
    for _ in range(60):
        optimizer.zero_grad()
        F.mse_loss(prepared(x), target).backward()
        optimizer.step()
    assert loss(prepared) < 0.5 * before
    assert loss(subbyte.convert(prepared)) == loss(prepared)
