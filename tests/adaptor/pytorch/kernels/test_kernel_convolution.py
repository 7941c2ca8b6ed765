"""use_kernels: converted convolutions on packed codes, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.kernels import isas, use_isa

X = seeded((3, 12, 13, 11))
KINDS: dict[str, Any] = {
    "padding": {"kernel_size": 3, "padding": 1},
    "pointwise": {"kernel_size": 1},
    "strides": {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    "dilation": {"kernel_size": 3, "dilation": (1, 2), "padding": 2},
    "same": {"kernel_size": (3, 5), "padding": "same"},
    "valid": {"kernel_size": 5, "padding": "valid", "bias": False},
}
CONFIGS = ["w8a8", "w4a4", "w3a8", "w1a8", "wternarya8", "w4a8:dynamic"]


def network(**options: Any) -> nn.Sequential:
    layers = [nn.Conv2d(12, 19, **options), nn.BatchNorm2d(19), nn.ReLU()]
    return randomized(nn.Sequential(*layers)).eval()


def kernels_of(model: nn.Module) -> list[str]:
    return [row["kernel"] for row in subbyte.summary(model).rows if row["type"].startswith("Conv")]


def check(model: nn.Module, config: str, x: torch.Tensor) -> nn.Module:
    """The converted model gives on kernels what it gave without."""
    converted = subbyte.quantize(model, config, x)
    with torch.no_grad():
        want = converted(x)
        kernel_model = subbyte.use_kernels(converted)
        assert all("on packed codes" in kernel for kernel in kernels_of(kernel_model))
        got = kernel_model(x)
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    return kernel_model


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("isa", [isa.name for isa in isas() if isa.available] or [""])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_width_and_memory_format(config: str, isa: str, memory_format: torch.memory_format) -> None:
    if isa:
        use_isa(isa)
    try:
        check(network(**KINDS["padding"]), config, X.contiguous(memory_format=memory_format))
    finally:
        if isa:
            use_isa("")


@pytest.mark.parametrize("kind", KINDS)
def test_every_geometry(kind: str, tmp_path: Path) -> None:
    model = network(**KINDS[kind])
    kernel_model = check(model, "w4a8", X)
    subbyte.save(kernel_model, tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(X), kernel_model(X))


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # of PyTorch, about its own copy
def test_padding_that_differs_at_both_ends() -> None:
    check(network(kernel_size=(2, 4), padding="same"), "w4a8", X)


def test_groups_that_fill_panels() -> None:
    check(nn.Sequential(nn.Conv2d(32, 20, 3, padding=1, groups=2)), "w4a8", seeded((2, 32, 7, 6)))


@pytest.mark.parametrize("config", ["w8a8", "w4a4", "w3a8:dynamic", "w1a8", "wfp4_e2m1a8"])
def test_each_channel_by_itself(config: str) -> None:
    for memory_format in (torch.contiguous_format, torch.channels_last):
        layer = nn.Conv2d(12, 12, (3, 2), (1, 2), padding=(1, 0), dilation=(1, 2), groups=12)
        kernel_model = check(nn.Sequential(layer, nn.ReLU()), config, X.contiguous(memory_format=memory_format))
    with torch.no_grad():
        assert kernel_model(X[:0]).shape == (0, 12, 13, 5)
    check(nn.Sequential(nn.Conv1d(12, 12, 3, groups=12)), config, X[:, :, 0])


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(12, 24, 3, groups=12),
        lambda: nn.Conv2d(12, 12, 3, padding=1, padding_mode="reflect"),
        lambda: nn.Conv3d(12, 12, (1, 1, 1)),
    ],
)
def test_what_has_no_kernel_runs_as_before(layer: Any) -> None:
    x = X if not isinstance(layer(), nn.Conv3d) else X[:, :, None]
    converted = subbyte.quantize(nn.Sequential(layer()), "w4a8", x)
    with torch.no_grad():
        want = converted(x)
        assert torch.equal(subbyte.use_kernels(converted)(x), want)
    assert all("reference" in kernel for kernel in kernels_of(converted))


def test_one_dimension_and_no_batch() -> None:
    options = {"kernel_size": 3, "padding": 1, "stride": 2}
    kernel_model = check(nn.Sequential(nn.Conv1d(12, 20, **options)), "w4a8", X[:, :, 0])
    with torch.no_grad():
        assert torch.equal(kernel_model(X[0, :, 0]), kernel_model(X[:1, :, 0])[0])
    two = check(nn.Sequential(nn.Conv2d(12, 19, 3)), "w4a8", X)
    with torch.no_grad():
        assert torch.equal(two[0](X[0]), two[0](X[:1])[0])


def test_an_empty_batch_and_a_batch_of_another_size() -> None:
    kernel_model = check(network(**KINDS["padding"]), "w4a8", X)
    with torch.no_grad():
        assert kernel_model(X[:0]).shape == (0, 19, 13, 11)
        assert kernel_model(seeded((1, 12, 40, 3))).shape == (1, 19, 40, 3)


@pytest.mark.parametrize("config", ["w4a8", "w4a8:dynamic"])
def test_it_compiles_and_exports(config: str) -> None:
    converted = subbyte.use_kernels(subbyte.quantize(network(**KINDS["padding"]), config, X))
    with torch.no_grad():
        want = converted(X)
        assert torch.equal(torch.compile(converted, fullgraph=True, backend="aot_eager")(X), want)
        assert torch.equal(torch.export.export(converted, (X,), strict=False).module()(X), want)
