"""Networks of one bit from surgery to kernels: the converted model gives what the trained one gives, bit for bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResNetCifar, randomized, seeded
from subbyte.training import set_progress
from subbyte.training.binary import LearnableShift, RPReLU, scale_by_input, skip_per_convolution

X = seeded((8, 4, 6, 6))


class BinaryNet(nn.Module):
    """What a published binary network is made of. Input [n, 4, 6, 6], output [n, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, padding=1)
        self.shift = LearnableShift(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.act = RPReLU(8)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.act(self.norm(self.conv(self.shift(x))) + x)
        return self.head(self.hidden(x.mean((2, 3))))


def _train(model: nn.Module, x: Tensor, classes: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(len(x)) % classes).backward()
        optimizer.step()


def _agree(model: nn.Module, x: Tensor, tolerance: float = 0.0) -> nn.Module:
    """Prepared, converted and run by kernels: one result; float inputs are summed in another order by kernels."""
    with torch.no_grad():
        want = model.eval()(x)
        converted = subbyte.convert(model)
        assert torch.equal(converted(x), want)
        fast = subbyte.use_kernels(converted)
        torch.testing.assert_close(fast(x), want, atol=tolerance, rtol=tolerance)
    assert torch.isfinite(want).all()
    return fast


@pytest.mark.parametrize("weight", ["bint1", "ternary"])
@pytest.mark.parametrize("activation", ["", "a8", "a4", "a2", "abint1"])
def test_binary_weights_with_any_activations(weight: str, activation: str) -> None:
    model = randomized(BinaryNet())
    config, ends = f"w{weight}{activation}", "int8" if activation else None
    prepared = subbyte.prepare_qat(model, config, X, first_last=ends)
    before = prepared.conv.weight.detach().clone()
    _train(prepared, X)
    assert not torch.equal(prepared.conv.weight, before)
    _agree(prepared, X, tolerance=0.0 if activation else 1e-5)


@pytest.mark.parametrize("gradient", ["clipped_identity", "approx_sign", "swish_sign", "ir_net", "ewgs"])
def test_every_sign_gradient(gradient: str) -> None:
    of_weight = gradient if gradient == "ewgs" else {gradient: {"standardized": True}}
    training = {"types": {"bint1": {"weight": of_weight, "activation": gradient}}}
    prepared = subbyte.prepare_qat(randomized(BinaryNet()), "w1a1", X, first_last="int8", training=training)
    if gradient == "ir_net":
        set_progress(prepared, 0.5)
    _train(prepared, X)
    _agree(prepared, X)


def test_binary_layers_run_by_popcount() -> None:
    prepared = subbyte.prepare_qat(randomized(BinaryNet()), "w1a1", X, first_last="int8")
    fast = _agree(prepared, X)
    assert "by popcount" in subbyte.explain(fast, "conv")
    assert "by popcount" in subbyte.explain(fast, "hidden")
    assert "by popcount" not in subbyte.explain(fast, "stem")
    assert len(subbyte.weights(fast)["conv"].packed) == 8 * 8 * 9 // 8


def test_a_learned_ternary_weight() -> None:
    training = {"types": {"ternary": {"weight": "trained_ternary"}}}
    prepared = subbyte.prepare_qat(randomized(BinaryNet()), "wternarya2", X, first_last="int8", training=training)
    start = prepared.conv.weight_quantizer.scale.detach().clone()
    _train(prepared, X)
    assert not torch.equal(prepared.conv.weight_quantizer.scale, start)
    _agree(prepared, X)


def test_with_the_magnitude_of_the_input() -> None:
    model = scale_by_input(randomized(BinaryNet()), X, ["conv"])
    prepared = subbyte.prepare_qat(model, "w1a1", X, first_last="int8")
    _train(prepared, X)
    _agree(prepared, X)


@pytest.mark.filterwarnings("ignore::subbyte.LostSignWarning")
def test_a_resnet_with_a_skip_per_convolution() -> None:
    x = seeded((2, 3, 32, 32))
    model = skip_per_convolution(randomized(ResNetCifar(20)), x)
    prepared = subbyte.prepare_qat(model, "w1a1", x, first_last="int8")
    _train(prepared, x, classes=2)
    fast = _agree(prepared, x)
    assert "by popcount" in subbyte.explain(fast, "layer3.2.conv2.inner.0")
