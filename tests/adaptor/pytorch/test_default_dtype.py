"""What quantization computes does not depend on torch.set_default_dtype."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded

X = seeded((4, 3, 8, 8))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def same(one: nn.Module, other: nn.Module) -> None:
    want, got = one.state_dict(), other.state_dict()
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert got[name].dtype == value.dtype, name
        assert _bits(got[name]) == _bits(value), name


def _bits(tensor: Tensor) -> bytes:  # NaN, too: of a quantizer that is not calibrated
    return tensor.detach().numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("config", ["w4a8", "w4a4:kl", "w4a4:mse", "w4a8:dynamic:g2", "w1a1", "wternarya8", "wnf4"])
def test_parameters_are_the_same_bits(tmp_path: Path, config: str, dtype: torch.dtype) -> None:
    model = randomized(ResidualNet())
    prepared = subbyte.prepare(model, config, X)
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        want = converted(X)
    subbyte.save(converted, tmp_path / "model.safetensors")
    with default_dtype(dtype), torch.no_grad():
        again = subbyte.prepare(model, config, X)
        same(prepared, again)
        for other in (subbyte.convert(again), subbyte.load(tmp_path / "model.safetensors", model)):
            same(converted, other)
            assert torch.equal(other(X), want)
