"""Which precisions stay in an op's ladder where costs are measured, and which where they are computed."""

from collections.abc import Mapping

import pytest
from fake import FLOAT, FakeModel, pair, search_of

from subbyte import OpConfig
from subbyte.spec import OpKey
from subbyte.tuning.ladder import LeftOut, dominated, ladder

INT4, INT8 = pair(4), pair(8)
MICROSECONDS = {INT4: 50.0, INT8: 54.5, FLOAT: 53.9}


def rungs(costs: Mapping[OpConfig, float], spread: float) -> list[OpConfig]:
    return ladder(list(costs), costs.__getitem__, lambda config: spread)[0]


def test_a_precision_stays_that_seems_dearer_than_a_wider_one_by_chance() -> None:
    assert rungs(MICROSECONDS, 0.5) == [INT4, INT8, FLOAT]


def test_a_precision_leaves_that_is_clearly_dearer_than_a_wider_one() -> None:
    found, left_out = ladder(list(MICROSECONDS), MICROSECONDS.__getitem__, lambda config: 0.1)
    assert found == [INT4, FLOAT]
    assert left_out == {INT8: LeftOut(FLOAT, pytest.approx(0.6), pytest.approx(0.1 * 2**0.5))}


@pytest.mark.parametrize(
    ("spread", "stays"), [(0.6 / 1.645 / 2**0.5 * 1.01, True), (0.6 / 1.645 / 2**0.5 * 0.99, False)]
)
def test_clearly_is_with_a_confidence_of_95_percent(spread: float, stays: bool) -> None:
    assert (INT8 in rungs(MICROSECONDS, spread)) is stays


def test_a_computed_cost_has_no_doubt() -> None:
    assert rungs({INT4: 4.0, INT8: 8.0, FLOAT: 8.0}, 0.0) == [INT4, FLOAT]
    assert rungs({INT4: 4.0, INT8: 8.0, FLOAT: 8.001}, 0.0) == [INT4, INT8, FLOAT]


def test_several_that_seem_dearer_stay_from_narrow_to_wide() -> None:
    costs = {FLOAT: 53.9, INT8: 54.5, pair(6): 54.9, INT4: 54.1, pair(2): 40.0}
    assert rungs(costs, 1.0) == [pair(2), INT4, pair(6), INT8, FLOAT]


def test_what_is_neither_wider_nor_narrower_than_a_rung_is_left_out_with_its_difference() -> None:
    costs = {pair(4, 8): 32.0, pair(8, 4): 33.0, INT8: 64.0}
    found, left_out = ladder(list(costs), costs.__getitem__, lambda config: 0.0)
    assert found == [pair(4, 8), INT8]
    assert left_out == {pair(8, 4): LeftOut(pair(4, 8), 1.0, 0.0)}


def test_an_alternative_is_dominated_only_if_it_saves_nothing_in_any_objective() -> None:
    size = {INT4: 4.0, INT8: 8.0, FLOAT: 32.0}
    costs = {"latency": MICROSECONDS.__getitem__, "size": size.__getitem__}
    spreads = {"latency": lambda config: 0.1, "size": lambda config: 0.0}
    assert dominated(list(size), costs, spreads) == {}
    only = {"latency": costs["latency"]}
    assert set(dominated(list(size), only, spreads)) == {INT8}
    assert dominated(list(size), only, {"latency": lambda config: 0.5}) == {}


class Measured(FakeModel):
    """One op whose latency is measured, with a spread."""

    def __init__(self, spread: float) -> None:
        super().__init__({"a": 10}, {"a": 1.0}, alternatives={"a": tuple(MICROSECONDS)})
        self.spread = spread

    def latency(self, config: object, samples: int = 1) -> float:
        return MICROSECONDS[config.op["a", "Linear"]]  # type: ignore[attr-defined]

    def latency_spread(self, key: OpKey, config: OpConfig, samples: int = 1) -> float:
        return self.spread


@pytest.mark.parametrize(("spread", "left_out"), [(0.5, set()), (0.1, {INT8})])
def test_a_search_for_latency_counts_the_spread_of_what_was_measured(spread: float, left_out: set[OpConfig]) -> None:
    key = ("a", "Linear")
    for objective in ("latency", {"latency": 2.0}):
        search = search_of(Measured(spread), objective=objective)
        assert set(search.useful(key)) == set(MICROSECONDS) - left_out
        assert set(search.left_out[key]) == left_out
        assert set(search.ladder(key)) == set(MICROSECONDS) - left_out
    both = search_of(Measured(spread), objective={"latency": 1.0, "size": 1.0})
    assert set(both.useful(key)) == set(MICROSECONDS)
