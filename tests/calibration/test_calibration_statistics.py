"""Statistics of a stream: ranges, averages, and what every kind of statistics refuses."""

import pytest
import torch

from subbyte.calibration import Histogram, MeanAbs, MinMax, MovingAverageMinMax, Statistics
from subbyte.errors import CalibrationError
from subbyte.spec import TensorSpec

SPEC = TensorSpec("int8")
ALL = [MinMax, MovingAverageMinMax, MeanAbs, Histogram]


def collected(kind: type[Statistics], stream: list, spec: TensorSpec = SPEC) -> Statistics:
    statistics = kind(spec)
    for batch in stream:
        statistics.observe(torch.as_tensor(batch, dtype=torch.float32))
    return statistics


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
    assert histogram.distribution().weighted()[1].sum() == 3


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
