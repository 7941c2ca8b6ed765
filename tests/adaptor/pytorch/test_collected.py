"""Which statistics can stand in the place of others."""

from subbyte.adaptor.pytorch.collected import covers
from subbyte.calibration import Histogram, MinMax


class Clipped(Histogram):
    """A histogram whose range is another."""


def test_a_histogram_holds_the_range_of_its_own_granularity() -> None:
    assert covers((Histogram, "per_tensor"), (MinMax, "per_tensor"))
    assert not covers((Histogram, "per_tensor"), (MinMax, "per_token"))
    assert not covers((MinMax, "per_tensor"), (Histogram, "per_tensor"))


def test_what_is_derived_says_so_itself() -> None:
    assert not covers((Clipped, "per_tensor"), (MinMax, "per_tensor"))
