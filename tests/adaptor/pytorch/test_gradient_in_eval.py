"""A part of a prepared model in eval(): gradients pass it as in train(), and its values are those of eval()."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded

X = seeded((8, 3, 7, 6))
CONFIGS = ["w8a8", "w4a4", "w1a1", "w4a8:dynamic", "w4"]
Gradients = dict[str, Tensor | None]


class Attending(nn.Module):
    """Products of two values, a softmax, cat and mul."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.second(x)
        scores = torch.softmax(a @ b.transpose(-2, -1), -1)
        return self.head(torch.cat([scores @ b, torch.sigmoid(a) * b], -1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.memory = nn.Linear(6, 6), nn.GRU(6, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.memory(self.before(x))[0]


def _gradients(model: nn.Module, x: Tensor = X) -> Gradients:
    model.zero_grad()
    given = x.clone().requires_grad_()
    model(given).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()} | {"x": given.grad}


def _near(got: Tensor | None, want: Tensor | None, name: str) -> None:
    assert got is not None, name
    assert want is not None, name
    assert F.cosine_similarity(got.flatten(), want.flatten(), 0) > 0.999, name


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.filterwarnings("ignore::subbyte.errors.LostSignWarning")
@pytest.mark.parametrize("training", [False, True])
def test_what_stands_before_a_layer_in_eval_learns_as_before_one_in_train(config: str, training: bool) -> None:
    make = subbyte.prepare_qat if training else subbyte.prepare
    model = make(randomized(ResidualNet()), config, X).train()
    for norm in (model.bn1, model.bn2):
        norm.eval()
    want = _gradients(model)
    model.linear.eval()
    got = _gradients(model)
    for name, gradient in got.items():
        if name.startswith("linear."):  # it learns nothing itself
            assert gradient is None, name
        else:
            _near(gradient, want[name], name)


@pytest.mark.parametrize("config", CONFIGS)
def test_of_a_whole_model_in_eval_the_input_has_the_gradient_of_training(config: str) -> None:
    model = subbyte.prepare(randomized(ResidualNet()), config, X)
    model.train()
    for norm in (model.bn1, model.bn2):
        norm.eval()
    want = _gradients(model)["x"]
    model.eval()
    _near(_gradients(model)["x"], want, "x")
    _near(_gradients(subbyte.convert(model))["x"], want, "converted")
    _near(_gradients(subbyte.use_kernels(subbyte.convert(model)))["x"], want, "on kernels")


@pytest.mark.parametrize(
    ("network", "config"), [(Attending, "w8a8"), (Attending, "w8a8:dynamic"), (Recurrent, "w8a8:dynamic")]
)  # static ranges leave a GRU float
def test_functions_and_recurrent_layers(network: type[nn.Module], config: str) -> None:
    x = seeded((3, 5, 6))
    model = subbyte.prepare(randomized(network()), config, x)
    want = _gradients(model.train(), x)["x"]
    _near(_gradients(model.eval(), x)["x"], want, "x")
    _same_values(model, x)


@pytest.mark.parametrize("config", CONFIGS)
def test_values_are_those_of_inference_to_the_last_bit(config: str) -> None:
    _same_values(subbyte.prepare(randomized(ResidualNet()), config, X), X)


def _same_values(model: nn.Module, x: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        want = model(x)
    assert torch.equal(model(x), want)
    assert torch.equal(model(x.clone().requires_grad_()), want)
    assert torch.equal(subbyte.convert(model)(x.clone().requires_grad_()), want)


def test_nothing_is_differentiated_where_the_input_asks_for_no_gradient() -> None:
    model = subbyte.prepare_qat(randomized(ResidualNet()), "w4a4", X).eval()
    assert not model(X).requires_grad


# Dynamo itself instantiates what it tells others not to.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
def test_compiled() -> None:
    torch._dynamo.reset()
    model = subbyte.prepare(randomized(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))), "w8a8", X[0, 0])
    x = X[0, 0].clone().requires_grad_()
    model.eval()(x).square().sum().backward()
    other = X[0, 0].clone().requires_grad_()
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(other)
    assert torch.equal(y, model(x))
    y.square().sum().backward()
    torch.testing.assert_close(other.grad, x.grad)
