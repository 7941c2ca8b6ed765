"""Distribution: what algorithms see of a block."""

import pytest
import torch

from subbyte.calibration import Distribution
from subbyte.errors import CalibrationError


def test_of_blocks_of_elements() -> None:
    distribution = Distribution.of(torch.tensor([[1.0, -3.0], [0.0, 5.0]]))
    assert distribution.minimum.tolist() == [-3, 0]
    assert distribution.maximum.tolist() == [1, 5]
    assert distribution.mean_abs.tolist() == [2, 2.5]
    values, counts = distribution.weighted()
    assert torch.equal(counts, torch.ones_like(values))


def test_padding_does_not_count() -> None:
    distribution = Distribution.of(torch.tensor([[1.0, -3.0], [5.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    assert distribution.mean_abs.tolist() == [2, 5]


@pytest.mark.parametrize("shape", [(1, 0), (3, 0), (0, 4)])
def test_an_empty_block_counts_as_zeros(shape: tuple) -> None:
    distribution = Distribution.of(torch.zeros(shape))
    for part in (distribution.minimum, distribution.maximum, distribution.mean_abs):
        assert torch.equal(part, torch.zeros(shape[0]))
    assert distribution.weighted()[0].shape == (shape[0], 1)


def test_a_range_alone_has_no_values() -> None:
    with pytest.raises(CalibrationError, match="register it with statistics=Histogram"):
        Distribution(torch.zeros(1), torch.ones(1)).weighted()
