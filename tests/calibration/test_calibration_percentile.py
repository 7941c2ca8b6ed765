"""percentile against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.calibration import Distribution, Histogram, algorithm_of, calibrate_statistics, calibrate_tensor
from subbyte.errors import ConfigError
from subbyte.spec import TensorSpec


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 400), st.sampled_from([51.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0]), st.integers(0, 1 << 20))
def test_the_range_is_numpys_rounded_outwards(size: int, percent: float, seed: int) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=size).astype(np.float32))
    spec = TensorSpec("uint8", "asym", algorithm=f"percentile({percent})")
    low = np.percentile(x.numpy(), 100 - percent, method="lower")
    high = np.percentile(x.numpy(), percent, method="higher")
    expected = (max(high, 0.0) - min(low, 0.0)) / 255
    assert calibrate_tensor(x, spec).scale.item() == pytest.approx(expected if expected else 1.0, rel=1e-5)


def test_counts_weigh() -> None:
    values = torch.tensor([[3.0, -1.0, 0.0, 9.0]])
    counts = torch.tensor([[50.0, 0.0, 49.0, 1.0]])
    repeated = values[0].repeat_interleave(counts[0].long())
    spec = TensorSpec("uint8", algorithm="percentile(90)")
    weighted = Distribution(values.amin(1), values.amax(1), None, values, counts)
    assert algorithm_of(spec).params(weighted, spec).scale == calibrate_tensor(repeated, spec).scale


def test_the_default_is_9999() -> None:
    x = torch.randn(50_000)
    default = calibrate_tensor(x, TensorSpec("int8", algorithm="percentile"))
    assert default.scale == calibrate_tensor(x, TensorSpec("int8", algorithm="percentile(99.99)")).scale
    assert default.scale < calibrate_tensor(x, TensorSpec("int8")).scale


def test_a_histogram_is_as_good_to_the_width_of_its_bins() -> None:
    torch.manual_seed(0)
    spec = TensorSpec("int8", algorithm="percentile(99)")
    stream = [torch.randn(1000) for _ in range(10)]
    statistics = Histogram(spec)
    for batch in stream:
        statistics.observe(batch)
    exact = calibrate_tensor(torch.cat(stream), spec).scale
    assert calibrate_statistics(statistics, spec).scale.item() == pytest.approx(exact.item(), rel=2.0**-12)


@pytest.mark.parametrize("percent", ["50", "0", "100.1", "-3"])
def test_refusals(percent: str) -> None:
    with pytest.raises(ConfigError, match="above 50 and at most 100"):
        calibrate_tensor(torch.randn(4), TensorSpec("int4", algorithm=f"percentile({percent})"))
