"""The gradients of sign and of ternary types, against their formulas and autograd of them."""

import pytest
import torch
import torch.nn.functional as F
from networks_to_train import SharedNet, train
from torch import Tensor

import subbyte
from networks import randomized, seeded
from subbyte.errors import ConfigError, ModelError
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training import as_gradient, set_progress

X = torch.cat([2 * seeded((6, 40), 1), torch.tensor([0.0, -0.0, 1.0, -1.0, 40.0, -40.0])[:, None]], 1)
UP = seeded((6, 41), 2)
SCALE = (0.5 + torch.arange(6) / 100).reshape(6, 1)
SIGN = TensorSpec("bint1", granularity="per_channel", axis=0)
TERNARY = TensorSpec("ternary", granularity="per_channel", axis=0)


def _run(asked: object, spec: TensorSpec = SIGN) -> tuple[Tensor, Tensor, Tensor | None]:
    """The value, and the gradients of x and scale."""
    x, scale = X.clone().requires_grad_(), SCALE.clone().requires_grad_()
    y = as_gradient(asked).fake_quantize(x, QuantParams(scale), spec, 41.0)
    (y * UP).sum().backward()
    return y.detach(), x.grad, scale.grad


def _slope_of(function: object, width: float = 1.0) -> Tensor:
    """What autograd makes of `scale * F(x / width)`, in float64."""
    x = X.double().requires_grad_()
    (UP.double() * SCALE.double() * function(x / width)).sum().backward()
    return x.grad


def _parabola(x: Tensor) -> Tensor:
    inner = torch.where(x < 0, 2 * x + x.square(), 2 * x - x.square())
    return torch.where(x.abs() < 1, inner, x.sign())


def _swish(x: Tensor, beta: float) -> Tensor:
    sigmoid = torch.sigmoid(beta * x)
    return 2 * sigmoid * (1 + beta * x * (1 - sigmoid)) - 1


@pytest.mark.parametrize(
    ("asked", "function"),
    [
        ("clipped_identity", lambda x: x.clamp(-1, 1)),
        ("approx_sign", _parabola),
        ("swish_sign", lambda x: _swish(x, 5.0)),
        ({"swish_sign": {"beta": 2.0}}, lambda x: _swish(x, 2.0)),
    ],
)
def test_the_slope_is_that_of_the_published_function(asked: object, function: object) -> None:
    y, of_x, of_scale = _run(asked)
    assert torch.equal(y, torch.where(X >= 0, SCALE, -SCALE))
    torch.testing.assert_close(of_x.double(), _slope_of(function), atol=1e-6, rtol=1e-5)
    assert of_scale is None


def test_width_stretches_the_slope() -> None:
    _, of_x, _ = _run({"approx_sign": {"width": 2.5}})
    torch.testing.assert_close(of_x.double(), _slope_of(_parabola, 2.5), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("progress", "t", "k"), [(0.0, 0.1, 10.0), (0.25, 10**-0.5, 10**0.5), (0.5, 1, 1), (1, 10, 1)])
def test_ir_net_sharpens_as_training_goes_on(progress: float, t: float, k: float) -> None:
    x = X.clone().requires_grad_()
    gradient = as_gradient("ir_net")
    y = gradient.fake_quantize_at(torch.tensor(progress), x, QuantParams(SCALE), SIGN, 41.0)
    (y * UP).sum().backward()
    torch.testing.assert_close(x.grad.double(), _slope_of(lambda x: k * torch.tanh(t * x)), atol=1e-5, rtol=1e-4)


def test_ewgs_of_a_sign() -> None:
    _, of_x, _ = _run({"ewgs": {"delta": 0.1}})
    v = X / SCALE
    # The paper's, of values in 0..1, whose two codes are 0 and 1.
    normalized = (v + 1) / 2
    want = UP * (1 + 0.1 * UP.sign() * (normalized - torch.where(X >= 0, 1.0, 0.0))) * (v.abs() <= 2)
    torch.testing.assert_close(of_x, want)


def test_trained_ternary() -> None:
    y, of_x, of_scale = _run("trained_ternary", TERNARY)
    grid = torch.where(X / SCALE >= 0.5, 1.0, torch.where(X / SCALE < -0.5, -1.0, 0.0))
    assert torch.equal(y, grid * SCALE)
    torch.testing.assert_close(of_x, torch.where(grid != 0, SCALE * UP, UP))
    torch.testing.assert_close(of_scale, (UP * grid).sum(1, keepdim=True))


def test_ternary_weight_networks_go_straight_through() -> None:
    weight = seeded((6, 4, 3, 3))
    spec = TensorSpec("ternary", granularity="per_channel", algorithm="twn")
    q = subbyte.quantize_tensor(weight, spec)
    for channel in range(6):
        magnitude = weight[channel].abs()
        alpha = magnitude[magnitude > 0.7 * magnitude.mean()].mean()
        torch.testing.assert_close(q.scale[channel].squeeze(), alpha)
        assert torch.equal(q.codes[channel] != q.codes[channel].flatten()[magnitude.argmin()], magnitude >= alpha / 2)
    _, of_x, _ = _run("straight_through", TERNARY)
    assert torch.equal(of_x, UP)


def test_standardized_weights() -> None:
    weight = seeded((4, 3, 3, 3), 3) * torch.tensor([1.0, 5.0, 0.1, 0.0]).reshape(4, 1, 1, 1) + 2
    weight.requires_grad_()
    made = as_gradient({"clipped_identity": {"standardized": True}}).reparametrized(weight)
    flat = weight[:3].detach().flatten(1)
    want = (flat - flat.mean(1, keepdim=True)) / flat.std(1, correction=0, keepdim=True)
    torch.testing.assert_close(made[:3].flatten(1), want, atol=1e-4, rtol=1e-4)
    assert not made[3].any()  # 2 exactly
    (made * seeded((4, 3, 3, 3))).sum().backward()
    assert torch.isfinite(weight.grad).all()
    assert as_gradient("clipped_identity").reparametrized(weight) is weight


@pytest.mark.filterwarnings("ignore::subbyte.LostSignWarning")
def test_progress_is_kept_by_checkpoints_and_gone_after_convert() -> None:
    x = seeded((16, 4, 6, 6))
    training = {"bint1": {"weight": {"ir_net": {"standardized": True}}, "activation": "ir_net"}}
    model = subbyte.prepare_qat(randomized(SharedNet()), "w1a1", x, training={"types": training})
    names = [name for name in model.state_dict() if name.endswith("progress")]
    assert len(names) == 4 + 5
    before = _gradients(model, x)
    set_progress(model, 0.75)
    assert all(model.state_dict()[name] == 0.75 for name in names)
    assert not torch.equal(_gradients(model, x), before)
    train(model, x)
    converted = subbyte.convert(model)
    assert not [name for name in converted.state_dict() if name.endswith("progress")]
    with torch.no_grad():
        assert torch.equal(converted(x), model.eval()(x))


def _gradients(model: torch.nn.Module, x: Tensor) -> Tensor:
    model.train().zero_grad()
    F.mse_loss(model(x), torch.zeros(len(x), 5)).backward()
    return model.conv2.weight.grad.clone()


def test_what_has_no_meaning_is_refused() -> None:
    x = seeded((4, 4, 6, 6))
    model = randomized(SharedNet())
    with pytest.raises(ConfigError, match=r"'approx_sign' has no meaning for the weight of op 'conv1'.*as bint1"):
        subbyte.prepare_qat(model, "w4a4", x, training={"weight": "approx_sign"})
    with pytest.raises(ConfigError, match=r"'trained_ternary' has no meaning .*as ternary"):
        subbyte.prepare_qat(model, "w1a4", x, training={"weight": "trained_ternary"})
    with pytest.raises(ConfigError, match=r"unknown option 'bete'; did you mean 'beta'"):
        as_gradient({"swish_sign": {"bete": 3}})
    prepared = subbyte.prepare_qat(model, "w1a4", x)
    with pytest.raises(ModelError, match="no gradient of this model changes with progress"):
        set_progress(prepared, 0.5)
    with pytest.raises(ConfigError, match="progress is from 0 to 1, not 3; give epoch / epochs"):
        set_progress(prepared, 3)


@pytest.mark.filterwarnings("ignore::subbyte.LostSignWarning")
def test_rules_of_types_beat_those_of_all_and_ops_beat_both() -> None:
    x = seeded((4, 4, 6, 6))
    rules = {
        "weight": "pact",
        "types": {"bint1": {"weight": "swish_sign"}},
        "ops": {"twice": {"weight": "approx_sign"}},
    }
    model = subbyte.prepare_qat(randomized(SharedNet()), "w1a1", x, first_last="int8", training=rules)
    names = {name: model.get_submodule(name).weight_quantizer.gradient.name for name in ("conv1", "conv2", "twice")}
    assert names == {"conv1": "pact", "conv2": "swish_sign", "twice": "approx_sign"}
    with pytest.raises(ConfigError, match=r"training: types: 'bint' is no data type; did you mean 'bint1'"):
        subbyte.prepare_qat(randomized(SharedNet()), "w1a1", x, training={"types": {"bint": {"weight": "ewgs"}}})


# Dynamo itself instantiates what it tells others not to.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("gradient", ["approx_sign", "ir_net", "trained_ternary"])
def test_a_training_step_compiles_in_one_graph(gradient: str) -> None:
    torch._dynamo.reset()
    x = seeded((4, 4, 6, 6))
    net = randomized(torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3)))
    is_ternary = gradient == "trained_ternary"
    of_weight = gradient if is_ternary else {gradient: {"standardized": True}}
    rules = {"types": {"ternary" if is_ternary else "bint1": {"weight": of_weight}}}
    if not is_ternary:
        rules["types"]["bint1"]["activation"] = gradient
    prepared = subbyte.prepare_qat(net, "wternarya2" if is_ternary else "w1a1", x, training=rules).train()
    if gradient == "ir_net":
        set_progress(prepared, 0.6)
    found = []
    for run in (prepared, torch.compile(prepared, backend="aot_eager", fullgraph=True)):
        prepared.zero_grad()
        loss = run(x).square().sum()
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in prepared.parameters() if p.grad is not None)])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("size", [3, 64])
@pytest.mark.parametrize("value", [0.3, -1e-4, 7.7e5])
def test_a_channel_of_equal_values_is_not_blown_up(value: float, size: int) -> None:
    weight = seeded((2, size, 3, 3))
    weight[0] = value  # of which the mean is not quite the same in fp32
    weight.requires_grad_()
    made = as_gradient({"clipped_identity": {"standardized": True}}).reparametrized(weight)
    assert made[0].abs().max() <= 1e-5 * abs(value)
    assert float(made[1].detach().std()) == pytest.approx(1.0, rel=0.1)
    (made * seeded((2, size, 3, 3), 1)).sum().backward()
    assert weight.grad[0].abs().max() < 10


@pytest.mark.parametrize("gradient", ["clipped_identity", "approx_sign", "swish_sign", "ewgs", "lsq"])
@pytest.mark.parametrize("spec", [SIGN, TERNARY])
def test_infinite_values_have_no_gradient(gradient: str, spec: TensorSpec) -> None:
    if as_gradient(gradient).obstacle(spec):
        return
    x = torch.tensor([[torch.inf, -torch.inf, 0.5]] * 6, requires_grad=True)
    scale = SCALE.clone().requires_grad_()
    as_gradient(gradient).fake_quantize(x, QuantParams(scale), spec, 3.0).sum().backward()
    assert not x.grad[:, :2].any()
    assert scale.grad is None or torch.isfinite(scale.grad).all()


@pytest.mark.parametrize(
    "asked",
    [
        {"approx_sign": {"width": float("inf")}},
        {"swish_sign": {"beta": float("nan")}},
        {"ir_net": {"last": float("inf")}},
        {"ewgs": {"delta": float("inf")}},
    ],
)
def test_options_are_finite(asked: dict[str, dict[str, float]]) -> None:
    with pytest.raises(ConfigError, match="finite number"):
        as_gradient(asked)
