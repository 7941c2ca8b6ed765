"""Shift, RPReLU, input magnitude and skip against their formulas."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subbyte
from networks import ResNetCifar, randomized, seeded
from subbyte.errors import ConfigError
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
    with pytest.raises(ConfigError, match="one group and zero padding"):
        InputMagnitude(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(ConfigError, match="no skip leads past any Conv2d of this model: it has none"):
        skip_per_convolution(nn.Linear(4, 4), seeded((2, 4)))
