"""use_kernels: converted ops of weights and inputs of one or two bits by popcount, bit for bit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte import DataType
from subbyte.kernels import isas, use_isa, used_isa

X = seeded((3, 8, 9, 10))
BY_POPCOUNT = ["w1a1", "wbint1auint1", "wternaryabint1", "wternaryauint1", "wternaryaternary", "wbint1aint1"]
BY_POPCOUNT += ["w1a1:dynamic", "wbint1auint1:dynamic", "wternaryaternary:dynamic"]
ELSEWHERE = ["w1a2", "w1a8", "w2a1", "w1a1:g4", "w1anf4"]


class Network(nn.Module):
    """Convolutions of every sort that the kernels know, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 18, 3, padding=1)
        self.norm = nn.BatchNorm2d(18)
        self.strided = nn.Conv2d(18, 12, (3, 2), stride=(2, 1), groups=2, padding=(1, 2), bias=False)
        self.depthwise = nn.Conv2d(12, 12, 3, groups=12, padding="same")
        self.row = nn.Conv1d(12, 9, 3, padding=2, dilation=2)
        self.last = nn.Linear(9, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.depthwise(self.strided(torch.relu(self.norm(self.first(x)))))
        return self.last(self.row(x.flatten(2)).transpose(1, 2))


def network() -> nn.Module:
    return randomized(Network()).eval()


def kernels_of(model: nn.Module) -> set[str]:
    kinds = ("Conv1d", "Conv2d", "Linear")
    return {row["kernel"] for row in subbyte.summary(model).rows if row["type"] in kinds}


@pytest.mark.parametrize("isa", [isa.name for isa in isas() if isa.available] or ["torch"])
@pytest.mark.parametrize("config", [*BY_POPCOUNT, *ELSEWHERE])
def test_the_output_stays_what_it_was_bit_for_bit(config: str, isa: str, tmp_path: Path) -> None:
    model = network()
    converted = subbyte.quantize(model, config, X)
    with torch.no_grad():
        want = converted(X)
        if isa != "torch":
            use_isa(isa)
        try:
            kernel_model = subbyte.use_kernels(converted)
            assert torch.equal(kernel_model(X), want)
            assert torch.equal(kernel_model(X.contiguous(memory_format=torch.channels_last)), want)
            assert torch.equal(copy.deepcopy(kernel_model)(X), want)
            name = f"{used_isa()}: integers first on packed codes, by popcount"
            assert (kernels_of(kernel_model) == {name}) == (config in BY_POPCOUNT)
            assert (name in kernels_of(kernel_model)) == (config in BY_POPCOUNT)
        finally:
            if isa != "torch":
                use_isa("")
        subbyte.save(kernel_model, tmp_path / "model.safetensors")
        assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(X), want)


@pytest.mark.parametrize("config", BY_POPCOUNT)
def test_a_nan_is_what_it_was(config: str) -> None:
    layers = nn.Sequential(nn.Conv2d(8, 20, 3, padding=1), nn.Flatten(1, 2), nn.Linear(10, 7))
    x = X.clone()
    x[1, 2, 3, 4] = torch.nan
    converted = subbyte.quantize(layers, config, X)
    with torch.no_grad():
        want = converted(x)
        torch.testing.assert_close(subbyte.use_kernels(converted)(x), want, rtol=0, atol=0, equal_nan=True)


def test_weights_are_read_as_before() -> None:
    converted = subbyte.quantize(network(), "wternarya1", X)
    before = {name: weight.dequantize() for name, weight in subbyte.weights(converted).items()}
    subbyte.use_kernels(converted)
    assert all(torch.equal(weight.dequantize(), before[name]) for name, weight in subbyte.weights(converted).items())


def test_types_of_the_users_own() -> None:
    weights = subbyte.register_dtype(DataType("flipped_signs", values=(1.0, -1.0), algorithm="mean_abs"))
    inputs = subbyte.register_dtype(DataType("odd_levels", values=(3.0, -3.0)))
    converted = subbyte.quantize(network(), f"w{weights.name}a{inputs.name}", X)
    with torch.no_grad():
        want = converted(X)
        before = {name: weight.codes for name, weight in subbyte.weights(converted).items()}
        assert torch.equal(subbyte.use_kernels(converted)(X), want)
    assert all("by popcount" in kernel for kernel in kernels_of(converted))
    assert all(torch.equal(weight.codes, before[name]) for name, weight in subbyte.weights(converted).items())


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # of PyTorch, about its own copy
@pytest.mark.parametrize(
    "options",
    [{"kernel_size": (2, 4), "padding": "same"}, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}],
)
def test_padding_that_the_kernel_cannot_do(options: dict[str, Any]) -> None:
    converted = subbyte.quantize(nn.Sequential(nn.Conv2d(8, 16, **options)), "w1a1", X)
    with torch.no_grad():
        want = converted(X)
        assert torch.equal(subbyte.use_kernels(converted)(X), want)
    assert kernels_of(converted) == {"reference: integers first in fp32"}


def test_an_empty_batch() -> None:
    converted = subbyte.use_kernels(subbyte.quantize(network(), "w1a1", X))
    with torch.no_grad():
        assert converted(X[:0]).shape == (0, *converted(X).shape[1:])


@pytest.mark.parametrize("config", ["w1a1", "wternaryauint1:dynamic"])
def test_it_compiles_and_exports(config: str) -> None:
    converted = subbyte.use_kernels(subbyte.quantize(network(), config, X))
    with torch.no_grad():
        want = converted(X)
        assert torch.equal(torch.compile(converted, fullgraph=True, backend="aot_eager")(X), want)
        assert torch.equal(torch.export.export(converted, (X,), strict=False).module()(X), want)
