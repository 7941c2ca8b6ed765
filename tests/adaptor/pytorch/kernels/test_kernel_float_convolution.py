"""use_kernels: converted convolutions of weight-only quantization on packed codes, within the bound."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte.kernels import used_isa

X = seeded((3, 12, 13, 11))
KINDS: dict[str, Any] = {
    "padding": {"kernel_size": 3, "padding": 1},
    "pointwise": {"kernel_size": 1},
    "strides": {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    "dilation": {"kernel_size": 3, "dilation": (1, 2), "padding": 2},
    "same": {"kernel_size": (3, 5), "padding": "same"},
    "valid": {"kernel_size": 5, "padding": "valid", "bias": False},
}


class Block(nn.Module):
    """As ResNet-20 has them: two convolutions, and a third in the shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(12, 20, 3, 2, 1, bias=False), nn.BatchNorm2d(20), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(20, 20, 3, 1, 1, bias=False), nn.BatchNorm2d(20))
        self.shortcut = nn.Sequential(nn.Conv2d(12, 20, 1, 2, bias=False), nn.BatchNorm2d(20))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


def kernels_of(model: nn.Module) -> list[str]:
    return [row["kernel"] for row in subbyte.summary(model).rows if row["type"].startswith("Conv")]


def check(layer: nn.Module, config: str, x: Tensor) -> nn.Module:
    """A converted convolution gives on kernels what it gives in float64, within the bound."""
    model = nn.Sequential(layer)
    converted = subbyte.quantize(model, config)
    weight = subbyte.weights(converted)["0"].dequantize().double()
    wide = nn.Sequential(type(layer)(*_shape(layer), **_options(layer))).double()
    wide[0].weight.data.copy_(weight)
    if layer.bias is not None:
        wide[0].bias.data.copy_(layer.bias)
    with torch.no_grad():
        want = wide(x.double())
        for parameter in wide.parameters():
            parameter.abs_()
        size = wide(x.double().abs())
        before = converted(x)
        y = subbyte.use_kernels(converted)(x)
    bound = size * (weight[0].numel() + 3 + 1) * 2.0**-24  # 1: of the dequantized weight
    bound = bound + want.abs() * 2.0**-8 if x.dtype == torch.bfloat16 else bound
    assert y.dtype == x.dtype
    assert y.stride() == before.stride()
    assert bool(((y.double() - want).abs() <= bound).all())
    assert kernels_of(converted) == [f"{used_isa()}: floats on packed codes"]
    assert torch.equal(subbyte.weights(converted)["0"].dequantize().double(), weight)
    return converted


def _shape(layer: Any) -> tuple[int, int]:
    return layer.in_channels, layer.out_channels


def _options(layer: Any) -> dict[str, Any]:
    names = ("kernel_size", "stride", "padding", "dilation", "groups")
    return {name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None}


@pytest.mark.parametrize("config", ["w8", "w4", "w3", "wuint2", "wnf4", "wfp4_e2m1", "w1", "wternary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_width_type_and_layout(config: str, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    check(nn.Conv2d(12, 19, 3, padding=1).to(dtype), config, X.to(dtype).contiguous(memory_format=memory_format))


@pytest.mark.parametrize("kind", KINDS)
def test_every_geometry(kind: str, tmp_path: Path) -> None:
    layer = nn.Conv2d(12, 19, **KINDS[kind])
    converted = check(layer, "w4", X)
    with torch.no_grad():
        y = converted(X)
        subbyte.save(converted, tmp_path / "model.safetensors")
        loaded = subbyte.load(tmp_path / "model.safetensors", nn.Sequential(layer))
        assert torch.equal(subbyte.use_kernels(loaded)(X), y)


def test_groups_one_dimension_and_no_batch() -> None:
    check(nn.Conv2d(32, 20, 3, padding=1, groups=2), "w4", seeded((2, 32, 7, 6)))
    converted = check(nn.Conv1d(12, 20, 3, padding=1, stride=2), "w4", X[:, :, 0])
    with torch.no_grad():
        assert torch.equal(converted(X[0, :, 0]), converted(X[:1, :, 0])[0])
        assert converted(X[:0, :, 0]).shape == (0, 20, 6)


@pytest.mark.parametrize("config", ["w4", "wnf4"])
def test_a_block_of_a_residual_network(config: str) -> None:
    converted = subbyte.quantize(randomized(Block()).eval(), config)
    with torch.no_grad():
        want = converted(X)
        y = subbyte.use_kernels(converted)(X)
        # Two convolutions deep: rounding stays far below what values are.
        torch.testing.assert_close(y, want, rtol=0, atol=float(want.abs().max()) * 1e-5)
        assert kernels_of(converted) == [f"{used_isa()}: floats on packed codes"] * 3
        assert torch.equal(torch.compile(converted, fullgraph=True, backend="aot_eager")(X), y)
        assert torch.equal(torch.export.export(converted, (X,), strict=False).module()(X), y)


def test_gradients_of_the_input_are_what_they_were() -> None:
    converted = subbyte.quantize(nn.Sequential(nn.Conv2d(12, 19, 3)), "w4")
    gradients = []
    for _ in range(2):
        x = X.clone().requires_grad_()
        converted(x).sum().backward()
        gradients.append(x.grad)
        subbyte.use_kernels(converted)
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(12, 12, 3, groups=12),
        lambda: nn.Conv2d(12, 24, 3, groups=6),
        lambda: nn.Conv2d(12, 12, 3, padding=1, padding_mode="reflect"),
        lambda: nn.ConvTranspose2d(12, 12, 3),
    ],
)
def test_what_has_no_kernel_runs_as_before(layer: Any) -> None:
    converted = subbyte.quantize(nn.Sequential(layer()), "w4")
    with torch.no_grad():
        want = converted(X)
        assert torch.equal(subbyte.use_kernels(converted)(X), want)
    assert all("reference" in kernel for kernel in kernels_of(converted))
