"""The order in which trials are tested, and how often that chooses a wrong one."""

from random import Random
from statistics import NormalDist

import pytest

from subbyte import TuneConfig
from subbyte.tuning import Trial
from subbyte.tuning.sequences import first_confidence, from_dear_to_cheap, passed, promising, spaced


def trial(number: int, loss: float, cost: float, met: bool = True, **given: object) -> Trial:
    return Trial(number, TuneConfig({}), {"metric": 1.0}, loss, {"size": cost}, cost, met, **given)  # type: ignore[arg-type]


TRIALS = [
    trial(0, 0.3, 2.0), trial(1, 0.1, 5.0), trial(2, 0.2, 6.0), trial(3, 0.0, 9.0), trial(4, 0.1, 7.0, met=False),
    trial(5, 0.05, 1.0, met=False, problem="fell"), trial(6, 0.01, 1.0, met=False, excess=0.1),
]  # fmt: skip


def test_the_first_sequence_goes_from_accurate_to_cheap_past_what_is_dearer_and_worse() -> None:
    assert [each.number for each in promising(TRIALS)] == [3, 1, 0]


def test_the_second_sequence_goes_from_dear_to_cheap_through_all_that_seem_good_enough() -> None:
    assert [each.number for each in from_dear_to_cheap(TRIALS)] == [3, 2, 1, 0]


def test_no_trial_passes_after_one_that_fails() -> None:
    asked: list[tuple[int, float]] = []

    def passes(each: Trial, confidence: float) -> bool:
        asked.append((each.number, confidence))
        return each.number != 1

    assert passed(TRIALS, 0.9, passes) == {3: True, 1: False, 0: False}
    assert asked == [(3, first_confidence(0.9)), (1, first_confidence(0.9))]


def test_the_second_sequence_is_tested_with_more_confidence_where_none_of_the_first_passes() -> None:
    asked: list[tuple[int, float]] = []

    def passes(each: Trial, confidence: float) -> bool:
        asked.append((each.number, confidence))
        return confidence > 0.95 and each.number != 0

    found = passed([trial(0, 0.1, 2.0), trial(1, 0.2, 6.0), trial(2, 0.3, 4.0)], 0.9, passes)
    assert found == {0: False, 1: True, 2: True}
    assert [number for number, _ in asked] == [0, 1, 2, 0]
    assert asked[1][1] == pytest.approx(0.98)


def test_of_many_trials_some_are_tested_the_first_and_the_last_among_them() -> None:
    trials = [trial(number, 0.1 * number, 10.0 - number) for number in range(9)]
    assert [each.number for each in spaced(trials, 5)] == [0, 2, 4, 6, 8]
    assert spaced(trials, None) == trials
    assert list(passed(trials, 0.9, lambda each, confidence: True, most=3)) == [0, 4, 8]


@pytest.mark.parametrize("confidence", [0.8, 0.9])
def test_a_wrong_trial_passes_no_more_often_than_stated(confidence: float) -> None:
    """Every trial is just too bad, and what is tested has chance of its own: the worst that there can be."""
    wrong, generator = 0, Random(0)
    trials = [trial(number, generator.random(), generator.random()) for number in range(8)]
    for _ in range(4000):
        chances = [generator.gauss(0, 1) for _ in trials]  # of the loss that is measured, in standard errors
        found = passed(trials, confidence, lambda each, c, of=chances: of[each.number] + NormalDist().inv_cdf(c) <= 0)
        wrong += any(found.values())
    share = 1 - confidence
    assert wrong <= 4000 * share + 3 * (4000 * share * confidence) ** 0.5
    assert wrong >= 4000 * share * 0.7  # nor is it far too rare
