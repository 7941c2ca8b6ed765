"""equalize: the float function stays, the ranges of paired channels become alike."""

import copy

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import BasicBlock, ResNetCifar, randomized, seeded, tiny_transformer, tune_config
from subbyte import TensorSpec
from subbyte.adaptor.pytorch.state import state_of
from subbyte.errors import ConfigError

ACTIVATION = TensorSpec("uint8", "asym")
WEIGHTS = [
    TensorSpec("int4", granularity="per_tensor"),
    TensorSpec("int4", granularity="per_channel"),
    TensorSpec("uint3", "asym"),
    TensorSpec("nf4"),
    TensorSpec("ternary"),
    TensorSpec("bint1"),
]


class Mobile(nn.Module):
    """Inverted residuals: pointwise, depthwise, pointwise; and a grouped one; relu, but relu6 at one place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.depthwise = nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(16, 16, 3, groups=16), nn.LeakyReLU(0.1))
        self.grouped = nn.Sequential(nn.Conv2d(16, 8, 1, groups=4), nn.BatchNorm2d(8), nn.ReLU6())
        self.up = nn.ConvTranspose2d(8, 12, 2, 2, groups=2)
        self.last = nn.Conv2d(12, 6, 3)
        self.head = nn.Linear(6 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.grouped(self.depthwise(self.expand(self.stem(x))))
        y = torch.relu(self.last(torch.relu(self.up(y))))
        y = nn.functional.adaptive_avg_pool2d(y, 2)
        return self.head(y.flatten(1))


def mobile() -> Mobile:
    model = randomized(Mobile())
    norm = nn.BatchNorm2d(16, affine=False).eval()
    norm.running_mean.copy_(seeded((16,), 1))
    norm.running_var.copy_(seeded((16,), 2).square() + 0.1)
    model.expand[1] = norm
    return model


def in_float(model: nn.Module, x: Tensor) -> Tensor:
    run = state_of(model).run
    phase, run.phase = run.phase, "bypass"
    with torch.no_grad():
        y = model(x)
    run.phase = phase
    return y


def folded(conv: nn.Module, norm: nn.Module | None = None) -> Tensor:
    """|weight| with BatchNorm's factor, [out, in of a group, taps], straight from the parameters."""
    weight = conv.weight.detach().abs().flatten(2)
    if norm is None:
        return weight
    gain = 1.0 if norm.weight is None else norm.weight.detach().abs()
    return weight * (gain / (norm.running_var + norm.eps).sqrt())[:, None, None]


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_the_float_function_stays_and_what_is_prepared_is_what_is_converted(weight: TensorSpec) -> None:
    model, x = mobile(), seeded((16, 3, 16, 16))
    before, kind = copy.deepcopy(model.state_dict()), tune_config(model, x, weight, ACTIVATION)
    plain = subbyte.prepare(model, kind, x)
    prepared = subbyte.prepare(model, kind, x, recover=["equalize"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    wanted = in_float(plain, x)
    assert (in_float(prepared, x) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert torch.equal(subbyte.convert(prepared)(x), prepared(x))


def test_ranges_of_paired_channels_become_equal() -> None:
    model, x = mobile(), seeded((16, 3, 16, 16))
    prepared = subbyte.prepare(model, "w4a4", x, recover={"equalize": {"iterations": 500, "tolerance": 1e-6}})
    stem, expand = folded(*prepared.stem[:2]), folded(*prepared.expand[:2])
    up = prepared.up.weight.detach().abs().reshape(2, 4, 6, -1).amax((1, 3)).flatten()  # [in, out / groups, ...]
    last, depthwise = folded(prepared.last), folded(prepared.depthwise[1])
    for made, read in [
        (stem.amax((1, 2)), expand.amax((0, 2))),
        (expand.amax((1, 2)), depthwise.amax((1, 2))),
        (up, last.amax((0, 2))),
    ]:
        alive = (made > 0) & (read > 0)
        assert alive.sum() >= len(alive) - 1
        torch.testing.assert_close(made[alive], read[alive], rtol=1e-3, atol=0)


def test_what_goes_through_relu6_or_into_a_sum_stays() -> None:
    model, x = mobile(), seeded((16, 3, 16, 16))
    prepared = subbyte.prepare(model, "w4a4", x, recover=["equalize"])
    norm = prepared.grouped[1]
    assert torch.equal(norm.weight, model.grouped[1].weight)
    assert torch.equal(norm.bias, model.grouped[1].bias)
    block = randomized(nn.Sequential(BasicBlock(4, 4, 1), nn.Conv2d(4, 3, 1)))
    prepared = subbyte.prepare(block, "w4a4", seeded((8, 4, 8, 8)), recover=["equalize"])
    assert torch.equal(prepared[1].weight, block[1].weight)
    assert torch.equal(prepared[0].bn2.weight, block[0].bn2.weight)
    assert not torch.equal(prepared[0].bn1.weight, block[0].bn1.weight)


def test_a_per_tensor_weight_of_unlike_channels_gains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    spread = torch.logspace(-2, 2, 32)
    with torch.no_grad():
        model[0].weight.mul_(spread[:, None])
        model[0].bias.mul_(spread)
        model[2].weight.div_(spread)
    x = seeded((64, 16))
    kind = tune_config(model, x, TensorSpec("int4", granularity="per_tensor"), ACTIVATION)
    error = [
        float((subbyte.quantize(model, kind, x, recover=recover)(x) - model(x)).detach().square().mean())
        for recover in (None, "equalize")
    ]
    assert error[1] < error[0] / 10


def test_a_real_layout_and_a_second_run_are_the_same_bit_for_bit() -> None:
    model, x = randomized(ResNetCifar(8, 4)), seeded((8, 3, 16, 16))
    first, second = (subbyte.quantize(model, "w4a4", x, recover=["equalize"])(x) for _ in range(2))
    assert torch.equal(first, second)


def test_a_model_without_pairs_is_refused_unless_that_may_be_passed_over() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).eval(), seeded((8, 4))
    with pytest.raises(ConfigError, match="no meaning for this model"):
        subbyte.prepare(model, "w4", x, recover=["equalize"])
    prepared = subbyte.prepare(model, "w4", x, recover={"equalize": {"unsupported": "skip"}})
    assert torch.equal(prepared[0].weight, model[0].weight)
    with pytest.raises(ConfigError, match="iterations"):
        subbyte.prepare(model, "w4", x, recover={"equalize": {"iterations": 0}})


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformers_keep_their_function(name: str) -> None:
    model = tiny_transformer(name)
    ids = torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(0))
    prepared = subbyte.prepare(model, "w4a8", ids, recover=["equalize"])
    state_of(prepared).run.phase = "bypass"
    with torch.no_grad():
        torch.testing.assert_close(prepared(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
