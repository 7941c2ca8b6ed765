"""Shift, RPReLU, input magnitude and skip against their formulas."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResNetCifar, randomized, seeded
from subbyte.errors import ConfigError, ModelError
from subbyte.training.binary import (
    InputMagnitude,
    LearnableShift,
    RPReLU,
    Skip,
    scale_by_input,
    skip_per_convolution,
)


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4, 4)])
def test_shift_and_rprelu_channel_by_channel(shape: tuple[int, ...]) -> None:
    x = seeded(shape)
    shift, act = LearnableShift(3, start=0.5), RPReLU(3)
    with torch.no_grad():
        shift.shift[1] = -2.0
        act.left.copy_(torch.tensor([0.0, 1.0, -1.0]))
        act.up.copy_(torch.tensor([0.5, 0.0, 2.0]))
        act.slope.copy_(torch.tensor([0.25, -0.5, 0.0]))
    for channel, by in enumerate([0.5, -2.0, 0.5]):
        assert torch.equal(shift(x)[:, channel], x[:, channel] - by)
    for channel, (left, up, slope) in enumerate([(0.0, 0.5, 0.25), (1.0, 0.0, -0.5), (-1.0, 2.0, 0.0)]):
        want = F.prelu(x[:, channel] - left, torch.tensor(slope)) + up
        torch.testing.assert_close(act(x)[:, channel], want)


def test_input_magnitude_is_the_papers_k() -> None:
    conv = nn.Conv2d(3, 4, (3, 5), stride=2, padding=(1, 2))
    bias = conv.bias.detach().clone()
    x = seeded((2, 3, 7, 9))
    magnitude = x.abs().mean(1, keepdim=True)
    around = F.avg_pool2d(magnitude, (3, 5), 2, (1, 2))  # counts the zeros of padding
    want = F.conv2d(x / magnitude, conv.weight, None, 2, (1, 2)) * around + bias.view(-1, 1, 1)
    torch.testing.assert_close(InputMagnitude(conv)(x), want)


def test_a_binary_layer_with_it_is_the_papers() -> None:
    x = seeded((2, 3, 6, 6))
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False)).eval()
    weight = model[0].weight.detach().clone()
    binary = subbyte.quantize(scale_by_input(model, x), "w1a1", x)
    alpha = weight.abs().mean((1, 2, 3)).view(-1, 1, 1)
    around = F.avg_pool2d(x.abs().mean(1, keepdim=True), 3, 1, 1)
    sign = torch.where(x >= 0, 1.0, -1.0)
    want = F.conv2d(sign, torch.where(weight >= 0, 1.0, -1.0), padding=1) * around * alpha
    torch.testing.assert_close(binary(x), want, atol=1e-5, rtol=1e-5)


def test_a_skip_adds_what_the_shape_asks_for() -> None:
    x = seeded((2, 4, 5, 5))
    conv = nn.Conv2d(4, 8, 3, stride=2, padding=1)
    skip = Skip(conv, stride=2, copies=2)
    mean = F.avg_pool2d(x, 2, ceil_mode=True)
    torch.testing.assert_close(skip(x), conv(x) + torch.cat([mean, mean], 1))


def test_a_resnet_keeps_what_it_is() -> None:
    x = seeded((2, 3, 32, 32))
    model = randomized(ResNetCifar(20))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    changed = skip_per_convolution(model, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(name for name, module in changed.named_modules() if isinstance(module, nn.Conv2d)) == "conv1"
    assert sum(isinstance(module, Skip) for module in changed.modules()) == 18
    assert sum(p.numel() for p in changed.parameters()) == sum(p.numel() for p in model.parameters())
    assert not changed.training
    # With the skips taken out again it computes what it did.
    for module in changed.modules():
        if isinstance(module, Skip):
            module.shortcut = lambda x: 0.0
    assert torch.equal(changed(x), model(x))


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        (["conv1"], "no skip leads past 'conv1': 16 channels out are no multiple of 3 in"),
        (["layer1.0.conv3"], "'layer1.0.conv3' matches no Conv2d of this model; did you mean 'layer"),
    ],
)
def test_where_no_skip_fits(ops: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        skip_per_convolution(ResNetCifar(20), seeded((1, 3, 32, 32)), ops)


def test_what_has_no_magnitude() -> None:
    with pytest.raises(ConfigError, match="one group and zero padding are needed"):
        InputMagnitude(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(ConfigError, match="no skip leads past any Conv2d of this model: it has none"):
        skip_per_convolution(nn.Linear(4, 4), seeded((2, 4)))


def _model(*modules: nn.Module) -> nn.Sequential:
    return randomized(nn.Sequential(*modules))


@pytest.mark.parametrize("padding", ["same", "valid", 1, 0])
def test_padding_by_name(padding: str | int) -> None:
    x, net = seeded((2, 4, 6, 6)), _model(nn.Conv2d(4, 4, 3, padding=padding), nn.Conv2d(4, 4, 3, padding=1))
    skipped = skip_per_convolution(net, x)
    assert isinstance(skipped[1], Skip)
    assert isinstance(skipped[0], Skip) == (padding in ("same", 1))
    y = seeded((2, 4, 6, 6), 1)
    around = F.conv2d(y.abs().mean(1, keepdim=True), torch.full((1, 1, 3, 3), 1 / 9), padding=padding)
    want = F.conv2d(y / y.abs().mean(1, keepdim=True), net[0].weight, padding=padding) * around
    torch.testing.assert_close(scale_by_input(net, x)[0](y), want + net[0].bias.view(-1, 1, 1))


def test_a_model_in_bf16() -> None:
    x = seeded((2, 4, 6, 6)).bfloat16()
    net = _model(nn.Conv2d(4, 4, 3, padding=1)).bfloat16()
    y = scale_by_input(net, x)(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), scale_by_input(net.float(), x.float())(x.float()), atol=0.05, rtol=0.05)
    with torch.device("meta"):
        assert InputMagnitude(nn.Conv2d(4, 4, 3)).window.is_meta


def test_one_convolution_under_two_names_is_changed_under_both() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(4, 4, 3, padding=1)
            self.b = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x)))

    x, net = seeded((2, 4, 6, 6)), randomized(Shared())
    skipped, scaled = skip_per_convolution(net, x), scale_by_input(net, x)
    hidden = F.relu(net.a(x) + x)
    torch.testing.assert_close(skipped(x), net.a(hidden) + hidden)
    torch.testing.assert_close(scaled(x), scaled.a(F.relu(scaled.a(x))))
    assert scaled.a is scaled.b


@pytest.mark.parametrize("surgery", [skip_per_convolution, scale_by_input])
def test_a_weight_that_the_models_code_reads(surgery: Any) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.a.weight, padding=1) + self.a(x)

    with pytest.raises(ModelError, match=r"does not run .*has no attribute 'weight'.*name the convolutions"):
        surgery(Reads(), seeded((2, 4, 6, 6)))


@pytest.mark.parametrize("surgery", [skip_per_convolution, scale_by_input])
def test_surgery_is_for_float_models_and_patterns_are_a_list(surgery: Any) -> None:
    x, net = seeded((2, 4, 6, 6)), _model(nn.Conv2d(4, 4, 3, padding=1))
    with pytest.raises(ModelError, match="prepared or quantized already; change the float model"):
        surgery(subbyte.prepare_qat(net, "w1a1", x), x)
    with pytest.raises(ConfigError, match=r"a list of names .*, as in \['0'\]"):
        surgery(net, x, ops="0")
    with pytest.raises(ConfigError, match=r"'\[' is neither a name nor a regular expression"):
        surgery(net, x, ops=["["])


def test_where_there_is_no_convolution_to_scale() -> None:
    for net in (_model(nn.Linear(6, 4)), _model(nn.Conv2d(4, 4, 3, groups=2))):
        with pytest.raises(ConfigError, match="InputMagnitude takes no Conv2d of this model"):
            scale_by_input(net, seeded((2, 4, 6, 6)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("surgery", [skip_per_convolution, scale_by_input])
def test_what_is_new_is_in_the_models_mode(surgery: Any, training: bool) -> None:
    net = _model(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)).train(training)
    changed = surgery(net, seeded((2, 4, 6, 6)))
    assert {module.training for module in changed.modules()} == {training}
    net[0].eval()
    assert not surgery(net, seeded((2, 4, 6, 6)))[0].training


def test_a_single_image() -> None:
    image, net = seeded((4, 6, 6)), _model(nn.Conv2d(4, 8, 3, padding=1, stride=2))
    for surgery in (skip_per_convolution, scale_by_input):
        changed = surgery(net, image)
        torch.testing.assert_close(changed(image), changed(image[None])[0])


def test_a_model_that_is_one_convolution() -> None:
    x, net = seeded((2, 4, 6, 6)), nn.Conv2d(4, 4, 3, padding=1)
    torch.testing.assert_close(skip_per_convolution(net, x)(x), net(x) + x)
    assert isinstance(scale_by_input(net, x), InputMagnitude)
