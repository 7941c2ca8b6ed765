"""Every weighted module type, in every geometry, equals its int64 recomputation bit for bit."""

from typing import Any

import pytest
import torch
from integer_oracle import check_model
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded, tune_config
from subbyte import TensorSpec

ACTIVATION = TensorSpec("uint6", "asym")
GRANULARITIES = ["per_tensor", "per_channel", "per_group(3)"]


class Named(nn.Module):
    """One weighted op, perhaps a BatchNorm behind it."""

    def __init__(self, op: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.op, self.norm = op, norm

    def forward(self, x: Tensor, *extra: Any) -> Tensor:
        y = self.op(x, *extra)
        return y if self.norm is None else self.norm(y)


def check(
    model: nn.Module, x: Tensor, weight: TensorSpec, activation: TensorSpec = ACTIVATION, *extra: Any
) -> nn.Module:
    model = randomized(model)
    prepared = subbyte.prepare(model, tune_config(model, [(x, *extra)], weight, activation), [(x, *extra)])
    check_model(model, prepared, x, *extra, ops=1)
    with torch.no_grad():
        assert prepared(x, *extra).shape == model(x, *extra).shape
    return prepared


CONVOLUTIONS = {
    "1d": (nn.Conv1d(5, 4, 3), (2, 5, 9)),
    "1d stride dilation same": (nn.Conv1d(5, 4, 4, dilation=2, padding="same"), (2, 5, 9)),
    "2d stride": (nn.Conv2d(5, 4, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 5, 8, 7)),
    "2d dilation": (nn.Conv2d(5, 4, 3, dilation=(2, 1), padding=2, bias=False), (2, 5, 8, 7)),
    "2d reflect": (nn.Conv2d(5, 4, 3, padding=2, padding_mode="reflect"), (2, 5, 8, 7)),
    "2d replicate": (nn.Conv2d(5, 4, 3, padding=(1, 2), padding_mode="replicate"), (2, 5, 8, 7)),
    "2d circular": (nn.Conv2d(5, 4, 3, padding=1, padding_mode="circular"), (2, 5, 8, 7)),
    "2d grouped": (nn.Conv2d(8, 6, 3, groups=2, padding=1), (2, 8, 6, 5)),
    "2d depthwise": (nn.Conv2d(6, 6, 3, groups=6, padding=1), (2, 6, 6, 5)),
    "2d depthwise multiplier": (nn.Conv2d(3, 6, 3, groups=3, padding=1), (2, 3, 6, 5)),
    "2d pointwise": (nn.Conv2d(7, 4, 1), (2, 7, 5, 5)),
    "2d unbatched": (nn.Conv2d(5, 4, 3), (5, 8, 7)),
    "3d": (nn.Conv3d(4, 3, (2, 3, 1), stride=(1, 2, 1), padding=(1, 1, 0)), (2, 4, 4, 5, 3)),
    "3d circular": (nn.Conv3d(4, 3, 3, padding=1, padding_mode="circular"), (1, 4, 4, 5, 3)),
    "transpose 1d": (nn.ConvTranspose1d(5, 4, 3, stride=2), (2, 5, 6)),
    "transpose 2d": (nn.ConvTranspose2d(5, 4, 3, stride=2, padding=1, output_padding=1), (2, 5, 4, 3)),
    "transpose 2d dilation": (nn.ConvTranspose2d(5, 4, 2, dilation=2, bias=False), (2, 5, 4, 3)),
    "transpose 2d grouped": (nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), (2, 6, 4, 3)),
    "transpose 2d depthwise": (nn.ConvTranspose2d(4, 4, 3, groups=4), (2, 4, 4, 3)),
    "transpose 2d unbatched": (nn.ConvTranspose2d(5, 4, 3), (5, 4, 3)),
    "transpose 3d": (nn.ConvTranspose3d(3, 4, 2, stride=2), (1, 3, 2, 3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, scheme: str, granularity: str) -> None:
    module, shape = CONVOLUTIONS[name]
    weight = TensorSpec("int5", scheme, granularity)
    grouped_transpose = isinstance(module, nn.ConvTranspose2d) and module.groups > 1
    if grouped_transpose and granularity == "per_group(3)":
        with pytest.raises(subbyte.ConfigError, match="per_group"):
            check(Named(module), seeded(shape), weight)
    else:
        check(Named(module), seeded(shape), weight)


def test_transposed_convolution_with_an_output_size() -> None:
    module = nn.ConvTranspose2d(5, 4, 3, stride=2)
    prepared = check(Named(module), seeded((2, 5, 4, 3)), TensorSpec("int4"), ACTIVATION, [10, 7])
    assert prepared(seeded((2, 5, 4, 3)), [10, 7]).shape == (2, 4, 10, 7)


class Calls(nn.Module):
    """The same calls, with arguments by place, or by name in any order."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.up, self.act, self.linear, self.named = nn.ConvTranspose2d(3, 4, 3, 2), nn.GELU(), nn.Linear(8, 3), named

    def forward(self, x: Tensor) -> Tensor:
        size = [2 * x.shape[-2] + 2, 2 * x.shape[-1] + 2]
        if self.named:
            return self.linear(input=self.act(input=self.up(output_size=size, input=x)))
        return self.linear(self.act(self.up(x, size)))


@pytest.mark.parametrize("config", ["w4a4", "w4a8:dynamic", "w4"])
def test_arguments_by_name_are_those_by_place(config: str) -> None:
    x = seeded((2, 3, 4, 3))
    named, placed = (subbyte.prepare(randomized(Calls(named)), config, x) for named in (True, False))
    rows = [subbyte.summary(model).rows for model in (named, placed)]
    assert [row["macs"] for row in rows[0]] == [row["macs"] for row in rows[1]]
    with torch.no_grad():
        want = placed(x)
        assert want.shape == (2, 4, 10, 3)
        assert torch.equal(named(x), want)
        assert torch.equal(subbyte.convert(named)(x), want)
    with pytest.raises(TypeError, match="argument"):
        named.linear(inptu=x)


NORMED = {
    "conv1d": (nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6, eps=0.3), (3, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=1e-3), (3, 4, 7, 6)),
    "conv2d grouped": (nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (3, 4, 7, 6)),
    "conv3d": (nn.Conv3d(2, 6, 2), nn.BatchNorm3d(6), (3, 2, 4, 3, 3)),
    "linear": (nn.Linear(8, 6), nn.BatchNorm1d(6, eps=1e-2), (5, 8)),
    "linear wide": (nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), (3, 8)),
}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", NORMED)
def test_batch_norm_folds(name: str, granularity: str) -> None:
    """Its factors are negative, zero and positive, its eps is not always 1e-5."""
    op, norm, shape = NORMED[name]
    prepared = check(Named(op, norm), seeded(shape), TensorSpec("int4", "asym", granularity))
    assert prepared.subbyte_state.graph.ops["op"].norm == "norm"
    x = seeded(shape)
    exact = subbyte.quantize(Named(op, norm), "w8a8", x)
    with torch.no_grad():
        want = Named(op, norm).eval()(x)
        assert (exact(x) - want).abs().max() < 0.03 * want.abs().max()


@pytest.mark.parametrize("kind", ["plain", "grouped"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_batch_norm_folds_into_a_transposed_convolution(kind: str, granularity: str) -> None:
    """With groups its weight holds out/groups channels: output channel g * (out/groups) + j is weight[g part, j]."""
    groups = 1 if kind == "plain" else 2
    model = randomized(Named(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=groups), nn.BatchNorm2d(6)))
    x = seeded((2, 4, 5, 4))
    config = tune_config(model, x, TensorSpec("int8", granularity=granularity), TensorSpec("uint8", "asym"))
    prepared = subbyte.prepare(model, config, x)
    assert prepared.subbyte_state.graph.ops["op"].norm == "norm"
    with torch.no_grad():
        want = model(x)
        assert (prepared(x) - want).abs().max() < 0.03 * want.abs().max()
        assert torch.equal(prepared(x), subbyte.convert(prepared)(x))


@pytest.mark.parametrize("shape", [(7, 9), (2, 3, 9), (2, 2, 2, 9), (9,)])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_group(4)"])
def test_linear_of_any_rank(granularity: str, shape: tuple[int, ...]) -> None:
    check(Named(nn.Linear(9, 4)), seeded(shape), TensorSpec("uint3", "asym", granularity))


@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("granularity", ["per_token", "per_tensor"])
@pytest.mark.parametrize("weight", ["per_tensor", "per_channel", "per_group(4)"])
def test_dynamic_linear(weight: str, granularity: str, scheme: str) -> None:
    model, x = randomized(Named(nn.Linear(9, 4))), seeded((2, 5, 9))
    activation = TensorSpec("uint8", scheme, granularity)
    config = tune_config(model, None, TensorSpec("int4", granularity=weight), activation, "dynamic")
    check_model(model, subbyte.prepare(model, config), x, ops=1)


@pytest.mark.parametrize("weight", ["uint8", "int8"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_sums_beyond_the_exact_range_of_fp32(kind: str, weight: str) -> None:
    """255 * 255 * 1200 is above 2^24: fp32 sums would lose ones; all values are near the top of the range."""
    model: nn.Module = Named(nn.Linear(1200, 3) if kind == "linear" else nn.Conv2d(134, 3, 3))
    x = (
        torch.rand((2, 1200) if kind == "linear" else (1, 134, 5, 4), generator=torch.Generator().manual_seed(1)) * 0.2
        + 0.8
    )
    with torch.no_grad():
        model.op.weight.copy_(torch.rand(model.op.weight.shape, generator=torch.Generator().manual_seed(2)) * 0.1 + 0.9)
    config = tune_config(model, x, TensorSpec(weight, "asym", "per_channel"), TensorSpec("uint8", "asym"))
    prepared = subbyte.prepare(model.eval(), config, x)
    check_model(model, prepared, x, ops=1)
    with torch.no_grad():
        assert "64" in subbyte.summary(prepared).rows[0]["kernel"]


def test_odd_memory_formats_compute_the_same() -> None:
    model = randomized(Named(nn.Conv2d(5, 8, 3, padding=1), nn.BatchNorm2d(8)))
    x = seeded((2, 5, 8, 7))
    quantized = subbyte.quantize(model, "w4a4", x)
    last = subbyte.quantize(model.to(memory_format=torch.channels_last), "w4a4", x)
    strided = torch.stack([x, -x], -1)[..., 0]
    with torch.no_grad():
        want = quantized(x)
        for net in (quantized, last):
            assert torch.equal(net(x.to(memory_format=torch.channels_last)), want)
            assert torch.equal(net(strided), want)
    assert torch.equal(subbyte.weights(last)["op"].codes, subbyte.weights(quantized)["op"].codes)


class Standardized(nn.Conv2d):
    """Computes with another weight than it holds, in a method that its base's forward calls."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Noted(nn.Conv2d):
    """Overrides what forward does not come to."""

    def extra_repr(self) -> str:
        return "noted"

    def reset_parameters(self) -> None:
        super().reset_parameters()

    def linear(self) -> None:
        """Nothing of the base's has this name."""


@pytest.mark.parametrize("config", ["w8a8", "w8"])
def test_a_subclass_that_computes_otherwise_is_code_of_its_own(config: str) -> None:
    x = seeded((2, 3, 6, 6))
    model = randomized(nn.Sequential(Noted(3, 3, 3), Standardized(3, 4, 3)))
    quantized = subbyte.quantize(model, config, x)
    rows = {row["name"]: (row["type"], row["weight_dtype"], row["params"]) for row in subbyte.summary(quantized).rows}
    weight, bias = ("conv2d", "fp32", 4 * 27), ("Standardized", "fp32", 4)
    assert rows == {"0": ("Conv2d", "int8", 3 * 27 + 3), "1.conv2d": weight, "1": bias}
    with torch.no_grad():
        assert torch.equal(quantized(x), model[1](quantized[0](x)))


@pytest.mark.parametrize("width", [5, 8])  # rows of int4 that end inside of a byte, and on one
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_group(3)"])
def test_an_index_out_of_range_is_refused_as_by_the_float_table(granularity: str, width: int) -> None:
    weight = {"dtype": ["int4"], "granularity": [granularity]}
    config = {"approach": "weight_only", "op_type_dict": {"Embedding": {"weight": weight}}}
    prepared = subbyte.prepare(randomized(nn.Embedding(10, width)), config)
    for table in (prepared.eval(), subbyte.convert(prepared)):
        assert table(torch.tensor([[3, 9]])).shape == (1, 2, width)
        assert table(torch.tensor(3)).shape == (width,)
        for index in (-1, 10):
            with pytest.raises(IndexError, match="out of range"):
                table(torch.tensor([index]))
