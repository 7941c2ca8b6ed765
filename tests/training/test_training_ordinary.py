"""A model that is trained is ordinary PyTorch: copies, checkpoints, autocast, compile, modes, keys."""

import copy

import pytest
import torch
from networks_to_train import SharedNet, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import subbyte
from networks import randomized, seeded
from subbyte.adaptor.pytorch.state import state_of
from subbyte.numerics import Learned
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.gradients.ewgs import Ewgs
from subbyte.training.gradients.lsq import Lsq

X = seeded((16, 4, 6, 6))


def _prepared(config: str = "w4a4") -> nn.Module:
    return subbyte.prepare_qat(randomized(SharedNet()), config, X, first_last="int8")


def test_keys_modes_statistics_and_random_state_are_the_models() -> None:
    model = randomized(SharedNet())
    model.conv1.train()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    prepared = subbyte.prepare_qat(model, "w4a4", X, first_last="int8")
    assert torch.equal(torch.get_rng_state(), random)
    own = prepared.state_dict()
    for name, value in before.items():
        assert torch.equal(own[name], value)
        assert torch.equal(model.state_dict()[name], value)
    modes = dict(prepared.named_modules())
    assert {name for name, module in model.named_modules() if module.training} == {"conv1"}
    assert modes["conv1"].training
    assert not modes["bn1"].training


def test_scales_are_parameters_that_learn() -> None:
    prepared = _prepared()
    learned = {name: p.detach().clone() for name, p in prepared.named_parameters() if name.endswith("scale")}
    assert len(learned) == 4 + 1 + 1 + 1 + 1 + 2 + 1 + 1 - 1
    train(prepared, X)
    now = dict(prepared.named_parameters())
    assert all(not torch.equal(now[name], start) for name, start in learned.items())


class Doubled(Lsq):
    """A gradient of a user's own: LSQ's, doubled on its way back."""

    def fake_quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Tensor:
        y = super().fake_quantize(x, params, spec, values)
        return 2 * y - y.detach()


def test_a_gradient_that_computes_otherwise_is_not_fused() -> None:
    x, params, spec = torch.randn(4), QuantParams(torch.tensor(0.1), torch.tensor(0)), TensorSpec("int4")
    assert Lsq().learned(x, params, spec, 4.0) is not None
    assert Doubled().learned(x, params, spec, 4.0) is None
    assert Ewgs().learned(x, params, spec, 4.0) is None


@pytest.mark.parametrize("activation", ["lsq", {"ewgs": {"delta": 0.5}}, "pact", "clipped"])
def test_fused_steps_are_those_of_single_operators(activation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rules = randomized(SharedNet()), {"activation": activation}
    fused = subbyte.prepare_qat(model, "w4a4", X, first_last="int8", training=rules)
    plain = copy.deepcopy(fused)
    loss = train(fused, X)
    state_of(plain).run.trained = False  # no relu is merged with the quantizer behind it
    monkeypatch.setattr(Learned, "has_kernels", False)
    assert torch.equal(loss, train(plain, X))
    assert all(torch.equal(p, q) for p, q in zip(fused.parameters(), plain.parameters(), strict=True))


def test_a_copy_trains_by_itself() -> None:
    prepared = _prepared()
    state = copy.deepcopy(prepared.state_dict())
    other = copy.deepcopy(prepared)
    loss = train(other, X)
    assert all(torch.equal(value, state[name]) for name, value in prepared.state_dict().items())
    assert torch.equal(train(prepared, X), loss)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(optimizer: str, tmp_path: object) -> None:
    def steps(model: nn.Module, own: torch.optim.Optimizer, count: int) -> Tensor:
        model.train()
        for _ in range(count):
            own.zero_grad()
            loss = model(X).square().mean()
            loss.backward()
            own.step()
        return loss.detach()

    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = subbyte.prepare_qat(randomized(SharedNet(), seed), "w4a4", X, training={"activation": "lsq"})
        return model, getattr(torch.optim, optimizer)(model.parameters(), 1e-2)

    model, own = made(0)
    steps(model, own, 2)
    saved = copy.deepcopy((model.state_dict(), own.state_dict()))
    want = steps(model, own, 3)
    again, again_own = made(7)  # other weights, and so other scales, until they are loaded
    again.load_state_dict(saved[0])
    again_own.load_state_dict(saved[1])
    assert torch.equal(steps(again, again_own, 3), want)
    with torch.no_grad():
        assert torch.equal(again.eval()(X), model.eval()(X))


def test_autocast() -> None:
    prepared = _prepared().train()
    with torch.autocast("cpu", torch.bfloat16):
        y = prepared(X)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in prepared.parameters())
    with torch.no_grad():
        assert torch.equal(subbyte.convert(prepared)(X), prepared.eval()(X))


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.again = SharedNet(), True

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x, use_reentrant=False) if self.again else self.part(x)


def test_gradients_are_the_same_under_checkpointing() -> None:
    prepared = subbyte.prepare_qat(randomized(_Checkpointed()).train(), "w4a4", X)
    found = []
    for again in (True, False):
        prepared.again = again
        prepared.zero_grad()
        prepared(X).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in prepared.named_parameters()})
    assert all(torch.equal(found[0][name], value) for name, value in found[1].items())


# Dynamo itself instantiates what it tells others not to.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("gradient", ["lsq", "lsq_plus", "clipped", "pact", "dorefa"])
def test_a_training_step_compiles_in_one_graph(gradient: str) -> None:
    torch._dynamo.reset()
    model = randomized(nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)))
    weight = "lsq" if gradient == "lsq_plus" else gradient
    prepared = subbyte.prepare_qat(model, "w4a4", X, training={"weight": weight, "activation": gradient}).train()
    losses = []
    for run in (prepared, torch.compile(prepared, backend="aot_eager", fullgraph=True)):
        prepared.zero_grad()
        loss = run(X).square().sum()
        loss.backward()
        losses.append([loss.detach(), *(p.grad.clone() for p in prepared.parameters())])
    for eager, compiled in zip(*losses, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-3)
