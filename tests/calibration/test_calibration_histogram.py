"""The streamed histogram: exact counts, any order, bounded memory, and scales as of the whole tensor."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.calibration import Histogram, calibrate_statistics, calibrate_tensor
from subbyte.calibration.distribution import Distribution
from subbyte.spec import TensorSpec

SPEC = TensorSpec("int8")
BOUND = 2.0**-12
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
batches = st.lists(st.lists(floats, min_size=1, max_size=30), min_size=1, max_size=8)


def collected(stream: list, spec: TensorSpec = SPEC) -> Histogram:
    histogram = Histogram(spec)
    for batch in stream:
        histogram.observe(torch.as_tensor(batch, dtype=torch.float32))
    return histogram


def weighted(stream: list) -> tuple[torch.Tensor, torch.Tensor]:
    values, counts = collected(stream).distribution().weighted()
    return values[0], counts[0]


@settings(deadline=None, max_examples=100)
@given(batches, st.randoms())
def test_it_does_not_depend_on_order_or_batches(stream: list, random) -> None:
    first = collected(stream).distribution()
    elements = [value for batch in stream for value in batch]
    random.shuffle(elements)
    cut = random.randint(0, len(elements))
    other = collected([part for part in (elements[:cut], elements[cut:]) if part]).distribution()
    for field in ("minimum", "maximum", "mean_abs", "values", "counts"):
        assert torch.equal(getattr(first, field), getattr(other, field))


@settings(deadline=None, max_examples=200)
@given(batches)
def test_every_value_is_counted_at_a_centre_near_it(stream: list) -> None:
    values, counts = weighted(stream)
    elements = np.sort(np.array([value for batch in stream for value in batch], dtype=np.float32)).astype(np.float64)
    centres = values.double().repeat_interleave(counts.long()).numpy()
    assert len(centres) == len(elements)
    assert (np.abs(centres - elements) <= np.maximum(np.abs(elements) * BOUND, 2.0**-137)).all()
    assert (counts > 0).all()
    assert (values.diff() > 0).all()


@pytest.mark.parametrize("size", [1, 1000, 200_000])
def test_memory_does_not_grow_with_the_stream(size: int) -> None:
    torch.manual_seed(0)
    histogram, kept = Histogram(SPEC), []
    values = torch.randn(size)
    for _ in range(2_000_000 // max(size, 2000)):
        histogram.observe(values)
        kept.append(sum(x.nbytes for x in (histogram._bins, histogram._counts, *histogram._waiting)))
    assert max(kept) <= 12 * min(size, 50_000) + 4 * (1 << 17)
    assert histogram.distribution().weighted()[1].sum() == size * len(kept)


def test_a_million_normal_values_take_half_a_megabyte() -> None:
    torch.manual_seed(0)
    histogram = collected([torch.randn(1_000_000)])
    assert histogram._bins.nbytes + histogram._counts.nbytes < 600_000


def test_zeros_of_a_relu_are_zero() -> None:
    values, counts = weighted([torch.randn(1000).relu()])
    assert values[0] == 0
    assert counts[0] > 400


@pytest.mark.parametrize("value", [0.0, 5.0, -1e20, 1e-40, -3.4028234663852886e38, 1e-45])
def test_a_constant_stream(value: float) -> None:
    values, counts = weighted([[value] * 10, [value] * 5])
    assert values == torch.tensor([value])
    assert counts == 15


def normal() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=60_000).astype(np.float32))


def outlier(value: float) -> torch.Tensor:
    x = normal()
    x[12_345] = value
    return x


def student(degrees: float) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_t(degrees, 60_000).astype(np.float32))


DATA = {
    "normal": normal(),
    "after a relu": normal().relu(),
    "log-normal": (normal() * 2).exp(),
    "Student, 3 degrees": student(3),
    "Cauchy": student(1),
    "an outlier of 30": outlier(30.0),
    "an outlier of 1e6": outlier(1e6),
    "an outlier of -1e30": outlier(-1e30),
    "far from zero": normal() * 1e-3 + 5,
    "tiny": normal() * 1e-30,
}
SPECS = [("int8", "sym"), ("int4", "sym"), ("uint4", "asym"), ("int2", "sym"), ("nf4", "sym")]


def streamed_over_whole(x: torch.Tensor, spec: TensorSpec) -> float:
    """How far the scale from a stream is off that from all values at once."""
    streamed = calibrate_statistics(collected(list(x.split(7001)), spec), spec).scale
    return (streamed / calibrate_tensor(x, spec).scale).item()


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("name", "scheme"), SPECS)
@pytest.mark.parametrize("percent", [75, 99, 99.5, 99.99])
def test_a_percentile_is_that_of_the_whole_tensor(data: str, name: str, scheme: str, percent: float) -> None:
    spec = TensorSpec(name, scheme, algorithm=f"percentile({percent})")
    assert streamed_over_whole(DATA[data], spec) == pytest.approx(1, rel=1.01 * BOUND)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("name", "scheme"), SPECS)
def test_the_search_of_least_error_finds_that_of_the_whole_tensor(data: str, name: str, scheme: str) -> None:
    assert streamed_over_whole(DATA[data], TensorSpec(name, scheme, algorithm="mse")) == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("name", "scheme"), SPECS)
def test_the_search_of_least_divergence_finds_that_of_the_whole_tensor(data: str, name: str, scheme: str) -> None:
    # kl has wide valleys: several ratios lose nearly the same.
    assert streamed_over_whole(DATA[data], TensorSpec(name, scheme, algorithm="kl")) == pytest.approx(1, rel=0.1)


def test_percentiles_beside_an_outlier_differ() -> None:
    histogram = collected([DATA["an outlier of 1e6"]])
    clips = [
        calibrate_statistics(histogram, TensorSpec("int8", algorithm=f"percentile({percent})")).scale.item() * 127
        for percent in (99, 99.5)
    ]
    assert clips == pytest.approx([2.32, 2.57], rel=0.02)


def test_the_mean_is_that_of_the_values() -> None:
    x = DATA["log-normal"]
    distribution = collected([x]).distribution()
    assert math.isclose(distribution.mean_abs.item(), Distribution.of(x[None]).mean_abs.item(), rel_tol=BOUND)
