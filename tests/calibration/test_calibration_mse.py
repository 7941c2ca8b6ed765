"""mse: never worse than minmax, and the best of its candidates."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.calibration import Distribution, algorithm_of, calibrate_tensor, quantize_tensor
from subbyte.dtypes import registered_dtypes
from subbyte.spec import TensorSpec

NAMES = [name for name, kind in registered_dtypes().items() if not kind.is_float]


def error(x: torch.Tensor, spec: TensorSpec) -> float:
    return (quantize_tensor(x, spec).dequantize() - x).double().square().sum().item()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_never_worse_than_minmax(name: str, granularity: str) -> None:
    torch.manual_seed(0)
    x = torch.distributions.StudentT(3.0).sample((3, 200))
    searched = error(x, TensorSpec(name, granularity=granularity, algorithm="mse"))
    assert searched <= error(x, TensorSpec(name, granularity=granularity, algorithm="minmax")) * (1 + 1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(0, 1 << 20))
def test_it_is_the_best_of_fifty_clip_ratios(bits: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_t(4, 120).astype(np.float32)
    spec = TensorSpec(f"int{bits}", algorithm="mse")
    widest = max(x.max() / spec.qmax, x.min() / spec.qmin)
    losses = []
    for step in range(50):
        scale = np.float32(widest * (1 - step / 50))
        codes = np.clip(np.rint(x / scale), spec.qmin, spec.qmax)
        losses.append(float(((x - codes * scale).astype(np.float64) ** 2).sum()))
    assert error(torch.from_numpy(x), spec) <= min(losses) * (1 + 1e-4)


def test_low_bits_clip_and_high_bits_hardly() -> None:
    torch.manual_seed(0)
    x = torch.randn(5000)
    clip = [
        calibrate_tensor(x, TensorSpec(f"int{bits}", algorithm="mse")).scale
        / calibrate_tensor(x, TensorSpec(f"int{bits}")).scale
        for bits in (2, 4, 8)
    ]
    assert clip[0] < clip[1] < clip[2]


def test_counts_weigh() -> None:
    values, counts = torch.randn(1, 50), torch.randint(0, 9, (1, 50)).float()
    spec = TensorSpec("uint4", "asym", algorithm="mse")
    weighted = Distribution(values.amin(1), values.amax(1), None, values, counts)
    repeated = values[0].repeat_interleave(counts[0].long())[None]
    plain = Distribution(values.amin(1), values.amax(1), None, repeated)
    ours, expected = (algorithm_of(spec).params(each, spec) for each in (weighted, plain))
    assert torch.equal(ours.scale, expected.scale)
    assert torch.equal(ours.zero_point, expected.zero_point)
