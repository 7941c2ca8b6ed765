"""smoothquant: the float function stays, outliers move into weights, quantized outputs come nearer."""

import copy

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded, tiny_transformer, tune_config
from subbyte import TensorSpec
from subbyte.adaptor.pytorch.state import state_of
from subbyte.errors import ConfigError

ACTIVATION = TensorSpec("uint8", "asym")
WEIGHTS = [
    TensorSpec("int4", granularity="per_tensor"),
    TensorSpec("int4", granularity="per_channel"),
    TensorSpec("uint3", "asym", "per_group(4)"),
    TensorSpec("nf4"),
    TensorSpec("ternary"),
    TensorSpec("bint1"),
]


class RootMean(nn.Module):
    """An RMSNorm written by hand, as models have it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Shifted(RootMean):
    """One that multiplies by 1 + weight: dividing the weight does not divide the output."""

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Normed(nn.Module):
    """A norm with two outlier channels, read by two linear maps; one reads a third."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.left, self.right = norm, nn.Linear(16, 24), nn.Linear(16, 24, bias=False)
        self.last = nn.Linear(24, 5)
        with torch.no_grad():
            norm.weight[3], norm.weight[11] = 60.0, -40.0
            for op in (self.left, self.right):
                op.weight[:, [3, 11]] /= 50.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.last(torch.sigmoid(self.left(y)) * self.right(y))


def normed(norm: type[nn.Module]) -> Normed:
    torch.manual_seed(0)
    return Normed(norm(16)).eval()


def in_float(model: nn.Module, x: Tensor) -> Tensor:
    state_of(model).run.phase = "bypass"
    with torch.no_grad():
        y = model(x)
    state_of(model).run.phase = "quantize"
    return y


def error(model: nn.Module, config: object, x: Tensor, recover: object) -> float:
    with torch.no_grad():
        return float((subbyte.quantize(model, config, x, recover=recover)(x) - model(x)).square().mean())


@pytest.mark.parametrize("alpha", [0.7, "auto"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, RootMean], ids=lambda norm: norm.__name__)
def test_outliers_of_a_norm_move_into_the_weights(norm: type[nn.Module], alpha: float | str) -> None:
    model, x = normed(norm), seeded((32, 6, 16))
    before = copy.deepcopy(model.state_dict())
    recover = {"smoothquant": {"alpha": alpha}}
    prepared = subbyte.prepare(model, "w8a8", x, recover=recover)
    wanted = model(x).detach()
    assert (in_float(prepared, x) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert torch.equal(subbyte.convert(prepared)(x), prepared(x))
    assert error(model, "w8a8", x, recover) < error(model, "w8a8", x, None) / 10
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_scale_is_that_of_the_formula() -> None:
    model, x = normed(RootMean), seeded((32, 6, 16))
    prepared = subbyte.prepare(model, "w8a8", x, recover={"smoothquant": {"alpha": 0.3}})
    given = model.norm(x).detach().abs().amax((0, 1))
    weights = torch.cat([model.left.weight, model.right.weight]).detach().abs().amax(0)
    scale = given.pow(0.3) / weights.pow(0.7)
    torch.testing.assert_close(prepared.norm.weight.detach(), model.norm.weight.detach() / scale)
    torch.testing.assert_close(prepared.left.weight.detach(), model.left.weight.detach() * scale)
    value = (model.right(model.norm(x)) * torch.sigmoid(model.left(model.norm(x)))).detach().abs().amax((0, 1))
    onward = value.pow(0.3) / model.last.weight.detach().abs().amax(0).pow(0.7)
    torch.testing.assert_close(prepared.last.weight.detach(), model.last.weight.detach() * onward)


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_every_kind_of_weight_and_convolutions(weight: TensorSpec) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    model, x = randomized(model), seeded((16, 3, 10, 10))
    with torch.no_grad():
        model[2].weight[2] *= 50
    config = tune_config(model, x, weight, ACTIVATION)
    prepared = subbyte.prepare(model, config, x, recover=["smoothquant"])
    wanted = model(x).detach()
    assert (in_float(prepared, x) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert not torch.equal(prepared[2].weight, model[2].weight)
    assert torch.equal(subbyte.convert(prepared)(x), prepared(x))
    again = subbyte.prepare(model, config, x, recover=["smoothquant"])
    assert torch.equal(again(x), prepared(x))


def test_a_norm_that_is_not_proportional_to_its_weight_stays() -> None:
    model, x = normed(Shifted), seeded((32, 6, 16))
    prepared = subbyte.prepare(model, "w8a8", x, recover=["smoothquant"])
    assert torch.equal(prepared.norm.weight, model.norm.weight)
    assert torch.equal(prepared.left.weight, model.left.weight)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformers_keep_their_function(name: str) -> None:
    model = tiny_transformer(name)
    ids = torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(0))
    prepared = subbyte.prepare(model, "w4a8", ids, recover=["smoothquant"])
    state_of(prepared).run.phase = "bypass"
    with torch.no_grad():
        torch.testing.assert_close(prepared(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_bad_requests() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)).eval(), seeded((8, 4))
    with pytest.raises(ConfigError, match="no meaning for this model"):
        subbyte.prepare(model, "w4", x, recover=["smoothquant"])
    subbyte.prepare(model, "w4", x, recover={"smoothquant": {"unsupported": "skip"}})
    with pytest.raises(ConfigError, match="alpha"):
        subbyte.prepare(model, "w4", x, recover={"smoothquant": {"alpha": 1.5}})
    with pytest.raises(ConfigError, match="undo"):
        subbyte.prepare(model, "w4", x, recover=["awq", "smoothquant"])
