"""use_kernels: the converted model on packed codes, bit for bit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte import ModelError
from subbyte.kernels import isas, use_isa, used_isa

X = seeded((16, 37))


def network() -> nn.Sequential:
    layers = [nn.Linear(37, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 33, bias=False), nn.Linear(33, 1)]
    return randomized(nn.Sequential(*layers)).eval()


ON_CODES = ["w8a8", "w4a8", "w3a4", "w2a8:dynamic", "w4a8:g5", "w4a8:dynamic:g32", "wint4auint4", "w5a7", "wuint3a8"]
ON_CODES += ["w1a8", "wternarya8:g8", "wternarya4", "wfp4_e2m1a8"]
ELSEWHERE = ["w4anf4"]


@pytest.mark.parametrize("config", [*ON_CODES, *ELSEWHERE])
@pytest.mark.parametrize("isa", [isa.name for isa in isas() if isa.available] or ["torch"])
def test_the_output_stays_what_it_was_bit_for_bit(config: str, isa: str, tmp_path: Path) -> None:
    model = network()
    converted = subbyte.quantize(model, config, X)
    with torch.no_grad():
        want = converted(X)
        if isa != "torch":
            use_isa(isa)
        try:
            kernel_model = subbyte.use_kernels(converted)
            assert kernel_model is converted
            assert torch.equal(kernel_model(X), want)
            assert torch.equal(copy.deepcopy(kernel_model)(X), want)
            assert kernel_model(X[:0]).shape == (0, 1)
            kernels = {row["kernel"] for row in subbyte.summary(kernel_model).rows if row["type"] == "Linear"}
        finally:
            if isa != "torch":
                use_isa("")
        assert all(("on packed codes" in kernel) == (config in ON_CODES) for kernel in kernels)
        subbyte.save(kernel_model, tmp_path / "model.safetensors")
        assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(X), want)


@pytest.mark.parametrize("config", ["wnf4a8", "wnf4a8:dynamic:g8"])
def test_a_codebook_that_is_no_multiple_of_a_step_is_rounded_to_one(config: str) -> None:
    converted = subbyte.quantize(nn.Sequential(nn.Linear(37, 50)), config, X)
    with torch.no_grad():
        want, scale = converted(X), subbyte.weights(converted)["0"].scale.max()
        got = subbyte.use_kernels(converted)(X)
    # Each weight moves by at most half a step of 1/127 of the largest value; activations by none.
    assert bool(((got - want).abs() <= X.abs().sum(1, keepdim=True) * scale / 254 * 1.01).all())
    assert not torch.equal(got, want)
    assert "values rounded to 8 bits" in subbyte.summary(converted).rows[0]["kernel"]


@pytest.mark.parametrize("config", ["w8", "w4:g8", "w3", "wuint2:g5", "wnf4:g32", "wfp4_e2m1", "w1", "wternary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_on_packed_codes_stay_within_the_bound(config: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(37, 50)).to(dtype), X.to(dtype)
    converted = subbyte.quantize(model, config)
    with torch.no_grad():
        weight = subbyte.weights(converted)["0"].dequantize().double()
        bias = model[0].bias.double()
        exact, size = x.double() @ weight.T + bias, x.double().abs() @ weight.abs().T + bias.abs()
        y = subbyte.use_kernels(converted)(x)
        assert y.dtype == dtype
        rounding = exact.abs() * 2.0**-8 if dtype == torch.bfloat16 else 0
        assert bool(((y.double() - exact).abs() <= size * (37 + 8 + 2) * 2.0**-24 + rounding).all())
        assert "floats on packed codes" in subbyte.summary(converted).rows[0]["kernel"]
        assert torch.equal(subbyte.weights(converted)["0"].dequantize().double(), weight)
        torch.compiler.reset()
        assert torch.equal(torch.compile(converted, fullgraph=True, backend="aot_eager")(x), y)
        subbyte.save(converted, tmp_path / "model.safetensors")
        loaded = subbyte.load(tmp_path / "model.safetensors", model)
        assert torch.equal(subbyte.use_kernels(loaded)(x), y)
    needs_gradient = x.clone().requires_grad_()
    torch.compile(converted, fullgraph=True, backend="aot_eager")(needs_gradient).sum().backward()
    assert needs_gradient.grad is not None


def test_gradients_of_the_input_are_what_they_were() -> None:
    converted = subbyte.quantize(network(), "w4a8:dynamic", X)
    gradients = []
    for _ in range(2):
        x = X.clone().requires_grad_()
        converted(x).sum().backward()
        gradients.append(x.grad)
        subbyte.use_kernels(converted)
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


def test_no_float_copy_and_no_second_copy_of_the_codes() -> None:
    model = nn.Sequential(nn.Linear(512, 512, bias=False))
    converted = subbyte.use_kernels(subbyte.quantize(model, "w4a8", seeded((4, 512))))
    held = sum(buffer.nbytes for buffer in converted.buffers()) + sum(p.nbytes for p in converted.parameters())
    assert held < 512 * 512 / 2 + 512 * 4 * 5 + 16
    assert torch.equal(subbyte.weights(converted)["0"].codes, subbyte.weights(converted)["0"].codes)


def test_weights_are_read_as_before() -> None:
    converted = subbyte.quantize(network(), "w4a8:g8", X)
    before = {name: weight.dequantize() for name, weight in subbyte.weights(converted).items()}
    subbyte.use_kernels(converted)
    assert all(torch.equal(weight.dequantize(), before[name]) for name, weight in subbyte.weights(converted).items())
    assert torch.equal(converted[0].weight.detach(), before["0"])


@pytest.mark.parametrize("strict", [True, False])
def test_state_is_loaded_before(strict: bool) -> None:
    converted = subbyte.quantize(network(), "w4", None)
    state = {name: value.clone() for name, value in converted.state_dict().items()}
    for name in [name for name in state if name.endswith("weight.scale")]:
        state[name] *= 2
    kernel_model = subbyte.use_kernels(converted)
    scale = subbyte.weights(kernel_model)["0"].scale.clone()
    with pytest.raises(RuntimeError, match=r"0.weight is laid out for kernels .* before subbyte.use_kernels"):
        kernel_model.load_state_dict(state, strict=strict)
    assert torch.equal(subbyte.weights(kernel_model)["0"].scale, scale)


def test_asking_twice_is_asking_once() -> None:
    converted = subbyte.quantize(network(), "w4a8", X)
    with torch.no_grad():
        want = converted(X)
        assert torch.equal(subbyte.use_kernels(subbyte.use_kernels(converted))(X), want)


@pytest.mark.parametrize("config", ["w4a8", "w4a8:dynamic"])
def test_it_compiles_and_exports(config: str) -> None:
    converted = subbyte.use_kernels(subbyte.quantize(network(), config, X))
    with torch.no_grad():
        want = converted(X)
        assert torch.equal(torch.compile(converted, fullgraph=True, backend="aot_eager")(X), want)
        assert torch.equal(torch.export.export(converted, (X,), strict=False).module()(X), want)


def test_the_kernel_in_use_is_named() -> None:
    converted = subbyte.use_kernels(subbyte.quantize(network(), "w4a8", X))
    assert subbyte.summary(converted).rows[0]["kernel"] == f"{used_isa()}: integers first on packed codes"


@pytest.mark.parametrize("make", [lambda: network(), lambda: subbyte.prepare(network(), "w4a8", X)])
def test_only_a_converted_model_runs_on_kernels(make: Any) -> None:
    with pytest.raises(ModelError, match=r"convert|not quantized"):
        subbyte.use_kernels(make())
