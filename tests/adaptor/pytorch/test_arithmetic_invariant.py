"""Prepared in eval() equals converted equals int64: every width, scheme and granularity, on a residual network."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from integer_oracle import check_model, codes_and_params, expected, recorded
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, ResNetCifar, UNet, randomized, seeded, tune_config
from subbyte import TensorSpec

WEIGHTS = [f"{sign}int{bits}" for bits in range(1, 9) for sign in ("", "u")]
GRANULARITIES = ["per_tensor", "per_channel", "per_group(4)"]  # 6 channels: the last group is short
X = seeded((4, 3, 7, 6))


def prepared(model: nn.Module, weight: TensorSpec, activation: TensorSpec, mode: str = "static") -> nn.Module:
    return subbyte.prepare(
        model, tune_config(model, X, weight, activation, mode), None if mode == "dynamic" else [X[:2], X[2:]]
    )


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("dtype", WEIGHTS)
def test_every_weight(dtype: str, scheme: str, granularity: str) -> None:
    model = randomized(ResidualNet())
    activation = TensorSpec("uint8", "asym")
    check_model(model, prepared(model, TensorSpec(dtype, scheme, granularity), activation), X, ops=3)


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("dtype", WEIGHTS)
def test_every_activation(dtype: str, scheme: str, mode: str) -> None:
    model = randomized(ResidualNet())
    weight = TensorSpec("int4", granularity="per_channel")
    check_model(model, prepared(model, weight, TensorSpec(dtype, scheme), mode), 1.5 * X, ops=3)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("types", [("bint1", "bint1"), ("ternary", "uint8"), ("int4", "ternary"), ("bint1", "int3")])
def test_tables_of_whole_numbers(types: tuple[str, str], granularity: str) -> None:
    model = randomized(ResidualNet())
    weight = TensorSpec(types[0], granularity=granularity)
    check_model(model, prepared(model, weight, TensorSpec(types[1])), X, ops=3)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", ["nf4", "fp4_e2m1"])
def test_tables_of_fractions_agree_within_rounding(dtype: str, granularity: str) -> None:
    model = randomized(ResidualNet())
    weight = TensorSpec(dtype, granularity=granularity)
    ready = prepared(model, weight, TensorSpec("uint8", "asym"))
    converted = subbyte.convert(ready)
    with torch.no_grad(), recorded(converted) as calls:
        assert torch.equal(converted(X), ready(X))
        name, _, conv, _, output = calls[0]
        assert name == "conv1"
        (quantizer,) = set(conv.input_quantizers)
        grid, scale = codes_and_params(X, quantizer)
        stored = subbyte.weights(converted)["conv1"].dequantize()
        y = F.conv2d((grid * scale).double(), stored.double(), padding=1)
        if granularity == "per_tensor":  # BatchNorm's factor is in the weight
            factor = torch.ones(())
        else:
            factor = (model.bn1.weight / (model.bn1.running_var + model.bn1.eps).sqrt()).view(-1, 1, 1)
        norm = model.bn1
        shift = norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt()
        want = y * factor + shift.view(-1, 1, 1)
        torch.testing.assert_close(output, want.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale_format", ["fp16", "bf16", "pow2"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_group(4)"])
def test_every_scale_format(granularity: str, scale_format: str) -> None:
    model = randomized(ResidualNet())
    weight = TensorSpec("int4", granularity=granularity, scale_format=scale_format)
    check_model(model, prepared(model, weight, TensorSpec("uint4")), X, ops=3)


def test_a_narrowed_range_of_codes() -> None:
    model = randomized(ResidualNet())
    weight = TensorSpec("int4", granularity="per_channel", quant_min=-7, quant_max=7)
    ready = prepared(model, weight, TensorSpec("uint8", "asym", quant_min=0, quant_max=200))
    check_model(model, ready, X, ops=3)
    assert int(subbyte.weights(ready)["conv1"].codes.min()) >= -7


@pytest.mark.parametrize("types", ["w4a4", "w2a3", "w8a8"])
def test_whole_residual_network_recomputed(types: str) -> None:
    """Not op by op but end to end: quantized inputs of the add included."""
    model = randomized(ResidualNet())
    ready = subbyte.prepare(model, types, X)
    state, stored = ready.subbyte_state, subbyte.weights(ready)

    def op(name: str, norm: nn.Module | None, x: Tensor) -> Tensor:
        module = ready.get_submodule(name)
        (quantizer,) = set(module.input_quantizers)
        return expected(model.get_submodule(name), norm, type(module).__name__, x, quantizer, stored[name])

    def value(x: Tensor, slot: int) -> Tensor:
        quantizer = state.quantizers[state.input_keys["add"][slot]]
        grid, scale = codes_and_params(x, quantizer)
        return grid.float() * scale

    with torch.no_grad():
        first = F.relu(op("conv1", model.bn1, X))
        second = op("conv2", model.bn2, first)
        y = F.relu(value(second, 0) + value(first, 1))
        want = op("linear", None, y.mean((2, 3)))
        assert torch.equal(ready(X), want)
        assert torch.equal(subbyte.convert(ready)(X), want)
        assert torch.equal(subbyte.quantize(model, types, X)(X), want)


@pytest.mark.parametrize("config", ["w4a4", "w3a8:dynamic", "w1a1", "wternarya4", "w4a4:mse", "w4"])
@pytest.mark.parametrize("network", [lambda: ResNetCifar(8, 4), lambda: UNet(4)], ids=["resnet", "unet"])
def test_deeper_networks(network: Callable[[], nn.Module], config: str) -> None:
    model = randomized(network())
    x = seeded((2, 3, 12, 12))
    ready = subbyte.prepare(model, config, x)
    count = sum(isinstance(module, nn.Conv2d | nn.Linear | nn.ConvTranspose2d) for module in model.modules())
    if config == "w4":
        with torch.no_grad():
            assert torch.equal(ready(x), subbyte.convert(ready)(x))
    else:
        check_model(model, ready, x, ops=count)


def test_the_number_of_threads_changes_nothing() -> None:
    model = randomized(ResNetCifar(8, 8))
    x = seeded((8, 3, 32, 32))
    quantized = subbyte.quantize(model, "w4a4", x)
    grouped = subbyte.quantize(nn.Sequential(copy.deepcopy(model.linear)), "w8a8", seeded((64, 32)))
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with torch.no_grad():
                results.append((quantized(x), grouped(seeded((64, 32), 1))))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
