"""Statistics of a stream: exact counts, any order, constant memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.calibration import Histogram, MeanAbs, MinMax, MovingAverageMinMax, Statistics
from subbyte.errors import CalibrationError
from subbyte.spec import TensorSpec

SPEC = TensorSpec("int8")
ALL = [MinMax, MovingAverageMinMax, MeanAbs, Histogram]
floats = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
batches = st.lists(st.lists(floats, min_size=1, max_size=30), min_size=1, max_size=8)


def collected(kind: type[Statistics], stream: list, spec: TensorSpec = SPEC) -> Statistics:
    statistics = kind(spec)
    for batch in stream:
        statistics.observe(torch.as_tensor(batch, dtype=torch.float32))
    return statistics


@settings(deadline=None, max_examples=100)
@given(batches, st.randoms())
def test_a_histogram_does_not_depend_on_the_order(stream: list, random) -> None:
    first = collected(Histogram, stream)
    elements = [value for batch in stream for value in batch]
    random.shuffle(elements)
    cut = random.randint(0, len(elements))
    other = collected(Histogram, [part for part in (elements[:cut], elements[cut:]) if part])
    assert (first.exponent, first.first) == (other.exponent, other.first)
    assert torch.equal(first.counts, other.counts)
    assert (first.minimum, first.maximum) == (other.minimum, other.maximum)


@settings(deadline=None, max_examples=100)
@given(batches)
def test_counts_of_a_histogram_are_exact(stream: list) -> None:
    histogram = collected(Histogram, stream)
    elements = np.array([value for batch in stream for value in batch], dtype=np.float32).astype(np.float64)
    bins = np.floor(elements / 2.0**histogram.exponent).astype(np.int64) - histogram.first
    assert histogram.counts.tolist() == np.bincount(bins, minlength=len(histogram.counts)).tolist()
    assert len(histogram.counts) <= Histogram.bins
    assert histogram.minimum.item() == elements.min()
    assert histogram.maximum.item() == elements.max()


def test_a_denormal_that_underflows_in_bins_of_a_wide_range() -> None:
    histogram = collected(Histogram, [[-1e6, -1e-45], [-1e6, -1e-45]])
    assert int(histogram.counts.sum()) == 4
    assert histogram.counts[-1] == 2


def test_memory_does_not_grow_with_the_stream() -> None:
    histogram = Histogram(SPEC)
    for step in range(60):
        histogram.observe(torch.randn(100) * 1.7**step)
        assert len(histogram.counts) <= Histogram.bins
    assert int(histogram.counts.sum()) == 6000


def test_a_histogram_is_as_fine_as_a_thousandth_of_the_range() -> None:
    histogram = collected(Histogram, [torch.randn(1000) for _ in range(5)])
    values, counts = histogram.distribution().weighted()
    width = 2.0**histogram.exponent
    assert width <= float(histogram.maximum - histogram.minimum) / 1024
    assert counts.sum() == 5000
    assert values.shape == counts.shape == (1, len(histogram.counts))


def test_after_a_relu_the_lowest_bin_stands_for_zero() -> None:
    values, counts = collected(Histogram, [torch.randn(1000).relu()]).distribution().weighted()
    assert values[0, 0] == 0
    assert counts[0, 0] > 400


@pytest.mark.parametrize("value", [0.0, 5.0, -1e20, 1e-40])
def test_a_constant_stream(value: float) -> None:
    histogram = collected(Histogram, [[value] * 10, [value] * 5])
    values, counts = histogram.distribution().weighted()
    assert values[counts > 0] == pytest.approx(value)
    assert counts.sum() == 15


def test_the_moving_average() -> None:
    stream = [torch.randn(50) for _ in range(20)]
    low, high = stream[0].min().item(), stream[0].max().item()
    for batch in stream[1:]:
        low += 0.01 * (batch.min().item() - low)
        high += 0.01 * (batch.max().item() - high)
    extent = collected(MovingAverageMinMax, stream).distribution()
    assert extent.minimum.item() == pytest.approx(low, rel=1e-5)
    assert extent.maximum.item() == pytest.approx(high, rel=1e-5)


def test_channels() -> None:
    stream = [torch.randn(4, 3, 6) for _ in range(5)]
    whole = torch.cat(stream)
    spec = TensorSpec("int8", granularity="per_channel", axis=1)
    assert torch.equal(collected(MinMax, stream, spec).minimum, whole.amin((0, 2)))
    assert torch.equal(collected(MinMax, stream, spec).maximum, whole.amax((0, 2)))
    mean = collected(MeanAbs, stream, spec).distribution().mean_abs
    assert torch.allclose(mean, whole.abs().mean((0, 2)))


def test_the_padding_of_a_short_group_is_no_value() -> None:
    x = torch.tensor([[1.0, -3.0, 5.0]])
    assert collected(
        MeanAbs, [x], TensorSpec("bint1", granularity="per_group(2)")
    ).distribution().mean_abs.tolist() == [2, 5]
    histogram = collected(Histogram, [x], TensorSpec("int8", granularity="per_group(4)"))
    assert int(histogram.counts.sum()) == 3


@pytest.mark.parametrize("kind", ALL)
def test_empty_batches_change_nothing(kind: type[Statistics]) -> None:
    stream = [torch.randn(8), torch.zeros(0), torch.randn(8)]
    with_empty, without = collected(kind, stream), collected(kind, [stream[0], stream[2]])
    assert torch.equal(with_empty.minimum, without.minimum)
    assert torch.equal(with_empty.maximum, without.maximum)
    with pytest.raises(CalibrationError, match="no calibration data"):
        collected(kind, [torch.zeros(0, 3)]).distribution()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused(kind: type[Statistics], bad: float) -> None:
    with pytest.raises(CalibrationError, match="NaN or infinity"):
        collected(kind, [[1.0, 2.0], [1.0, bad]])


def test_another_number_of_channels_is_refused() -> None:
    spec = TensorSpec("int8", granularity="per_channel", axis=1)
    with pytest.raises(CalibrationError, match="saw 3 channels before and 4 now"):
        collected(MinMax, [torch.randn(2, 3), torch.randn(2, 4)], spec)


def test_a_histogram_is_of_a_whole_tensor() -> None:
    spec = TensorSpec("int8", granularity="per_channel", axis=1, algorithm="kl")
    with pytest.raises(CalibrationError, match=r"whole tensor, not per_channel.*use the algorithm minmax"):
        collected(Histogram, [torch.randn(2, 3)], spec)


@pytest.mark.parametrize("kind", ALL)
def test_half_precision_is_read_as_its_values(kind: type[Statistics]) -> None:
    x = torch.randn(100).bfloat16()
    half, full = kind(SPEC), kind(SPEC)
    half.observe(x)
    full.observe(x.float())
    assert torch.equal(half.minimum, full.minimum)
