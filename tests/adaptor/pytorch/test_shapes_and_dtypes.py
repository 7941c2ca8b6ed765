"""Empty tensors, one sample, unbatched inputs, half precision, memory formats, double-precision models."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, ResNetCifar, UNet, randomized, seeded

X = seeded((4, 3, 8, 8))


@pytest.mark.parametrize("config", ["w4a4", "w1a1", "w4a8:dynamic", "w4:g4", "w4"])
@pytest.mark.parametrize("kind", ["prepared", "converted"])
def test_an_empty_batch_gives_an_empty_result(kind: str, config: str) -> None:
    model = subbyte.prepare(randomized(ResidualNet()), config, X)
    model = subbyte.convert(model) if kind == "converted" else model
    with torch.no_grad():
        assert model(X[:0]).shape == (0, 5)
        if config not in ("w4", "w4a8:dynamic"):  # float sums, and ranges, depend on the batch
            assert torch.equal(model(X)[:1], model(X[:1]))


def test_empty_batches_in_calibration_are_passed_over() -> None:
    model = randomized(ResidualNet())
    one = subbyte.prepare(model, "w4a4", [X[:0], X, X[:0]])
    two = subbyte.prepare(model, "w4a4", [X])
    with torch.no_grad():
        assert torch.equal(one(X), two(X))


class Growing(nn.Module):
    """Concatenates to a part that is empty at first, as a cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        y = self.linear(x)
        past = y[:, :0] if past is None else past
        return self.head(torch.cat([past, y], 1))


def test_empty_parts_of_a_cat() -> None:
    model, x = randomized(Growing()), seeded((2, 3, 6))
    quantized = subbyte.quantize(model, "w8a8", [(x,)])
    with torch.no_grad():
        assert (quantized(x) - model(x)).abs().max() < 0.1
        past = seeded((2, 4, 6))
        assert quantized(x, past).shape == (2, 7, 2)


def test_a_batch_of_one_and_unbatched_images() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, 2))
    model = randomized(model)
    plain = nn.Sequential(model[0], model[2], model[3])
    quantized = subbyte.quantize(plain, "w4a4", X)
    with torch.no_grad():
        batched = quantized(X)
        assert torch.equal(quantized(X[:1]), batched[:1])
        assert torch.equal(quantized(X[0]), batched[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("config", ["w8a8", "w4", "w8a8:dynamic", "w4a8:g4", "w1a8"])
@pytest.mark.parametrize("network", ["residual", "resnet", "unet"])
def test_half_precision_models_run(network: str, config: str, dtype: torch.dtype) -> None:
    model = randomized(
        {"residual": ResidualNet, "resnet": lambda: ResNetCifar(8, 4), "unet": lambda: UNet(4)}[network]()
    )
    with torch.no_grad():
        reference = subbyte.quantize(model, config, X)(X)
        low, x = model.to(dtype), X.to(dtype)
        prepared = subbyte.prepare(low, config, x)
        converted = subbyte.convert(prepared)
        got = converted(x)
        assert got.dtype == dtype
        assert torch.equal(got, prepared(x))
        assert torch.isfinite(got).all()
        assert (got.float() - reference).abs().max() < 0.25 * reference.abs().max()
    assert {parameter.dtype for parameter in prepared.parameters()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_converted_model_can_be_cast(dtype: torch.dtype) -> None:
    """Scales keep the format that codes were made with."""
    quantized = subbyte.quantize(randomized(ResidualNet()), "w8a8", X)
    with torch.no_grad():
        want = quantized(X)
        got = quantized.to(dtype)(X.to(dtype))
    assert got.dtype == dtype
    assert (got.float() - want).abs().max() < 0.1 * want.abs().max()
    assert subbyte.weights(quantized)["conv1"].scale.dtype == torch.float32


CASTS = [torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("config", ["w8a8", "w4", "w4:g4", "w4a8:dynamic", "w4a8:g4", "w1a1", "wnf4a8"])
@pytest.mark.parametrize("network", [ResidualNet, lambda: UNet(4)], ids=["residual", "unet"])
def test_prepared_and_converted_models_agree_when_both_are_cast(network: Any, config: str, dtype: torch.dtype) -> None:
    prepared = subbyte.prepare(randomized(network()), config, X)
    scales = {name: x.clone() for name, x in prepared.state_dict().items() if name.endswith("scale")}
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        got = prepared.to(dtype)(X.to(dtype))
        assert got.dtype == dtype
        assert torch.equal(converted.to(dtype)(X.to(dtype)), got)
        assert torch.equal(subbyte.convert(prepared)(X.to(dtype)), got)
    for model in (prepared, converted):
        state = model.state_dict()
        assert all(torch.equal(state[name], scale) for name, scale in scales.items() if name in state)


@pytest.mark.parametrize("dtype", CASTS)
def test_a_cast_table_gives_rows_of_the_type_of_the_model(dtype: torch.dtype) -> None:
    model, tokens = randomized(nn.Sequential(nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 3))), torch.arange(9)
    prepared = subbyte.prepare(model, "w4a8", tokens)
    converted = subbyte.convert(prepared).to(dtype)
    with torch.no_grad():
        want = prepared.to(dtype)(tokens)
        assert want.dtype == dtype
        assert torch.equal(converted(tokens), want)
    assert prepared.train()(tokens).dtype == dtype


@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("config", ["w8a8", "w4"])
def test_a_cast_prepared_model_trains(config: str, dtype: torch.dtype) -> None:
    prepared = subbyte.prepare(randomized(ResidualNet()), config, X).to(dtype).train()
    prepared(X.to(dtype)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in prepared.parameters())


def test_autocast_does_not_touch_integer_sums() -> None:
    model = randomized(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 4)))
    prepared = subbyte.prepare(model, "w8a8", X)
    with torch.no_grad():
        want = prepared(X)
        with torch.autocast("cpu", torch.bfloat16):
            got, converted = prepared(X), subbyte.convert(prepared)(X)
    assert torch.equal(got, want)
    assert torch.equal(converted, want)


def test_memory_formats_change_nothing() -> None:
    model = randomized(ResNetCifar(8, 4))
    quantized = subbyte.quantize(model, "w4a4", X)
    last = copy.deepcopy(quantized).to(memory_format=torch.channels_last)
    with torch.no_grad():
        want = quantized(X)
        for net in (quantized, last):
            assert torch.equal(net(X.to(memory_format=torch.channels_last)), want)
            assert torch.equal(net(X.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)), want)


def test_a_model_in_another_memory_format_is_calibrated_alike() -> None:
    model = randomized(ResNetCifar(8, 4))
    quantized = subbyte.quantize(model, "w4a4", X)
    last = subbyte.quantize(
        model.to(memory_format=torch.channels_last), "w4a4", X.to(memory_format=torch.channels_last)
    )
    with torch.no_grad():  # float convolutions differ by a rounding between formats, and with them the ranges
        torch.testing.assert_close(last(X), quantized(X), rtol=1e-5, atol=1e-5)


def test_inputs_are_not_written_to() -> None:
    model = randomized(ResidualNet())
    x = X.clone()
    prepared = subbyte.prepare(model, "w4a4", x)
    with torch.no_grad():
        prepared(x)
        subbyte.convert(prepared)(x)
    assert torch.equal(x, X)
