"""The Pareto front against a plain comparison of every pair."""

import random

import pytest

from subbyte import TuneConfig
from subbyte.errors import TuningError
from subbyte.tuning import Trial, pareto


def trial(number: int, loss: float, size: float, problem: str = "") -> Trial:
    return Trial(number, TuneConfig({}), {}, loss, {"size": size}, size, met=False, problem=problem)


def test_what_others_beat_is_left_out() -> None:
    given = [(0.0, 9), (0.1, 5), (0.2, 5), (0.3, 4), (0.1, 6), (0.9, 1), (0.9, 2)]
    trials = [trial(number, *each) for number, each in enumerate(given)]
    assert [each.number for each in pareto(trials, "size")] == [5, 3, 1, 0]


def test_it_is_what_no_pair_rules_out() -> None:
    generator = random.Random(0)
    trials = [trial(number, generator.randrange(9) / 9, generator.randrange(9)) for number in range(60)]

    def beats(one: Trial, other: Trial) -> bool:
        pairs = [(one.loss, other.loss), (one.cost, other.cost)]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    left = {(each.loss, each.cost) for each in trials if not any(beats(other, each) for other in trials)}
    front = pareto(trials, "size")
    assert {(each.loss, each.cost) for each in front} == left
    assert len(front) == len(left)  # of equal ones the first alone
    assert [each.cost for each in front] == sorted(each.cost for each in front)


def test_failed_trials_are_left_out() -> None:
    assert [each.number for each in pareto([trial(0, float("inf"), 1, "it broke"), trial(1, 0.1, 2)], "size")] == [1]
    assert pareto([], "size") == []


def test_names_are_those_of_objectives() -> None:
    assert pareto([trial(0, 0.1, 2)], "modelsize")
    with pytest.raises(TuningError, match="did not look at 'bops', but at: size; name it as an objective"):
        pareto([trial(0, 0.1, 2)], "bops")
    with pytest.raises(TuningError, match="'sise' is unknown; did you mean 'size'"):
        pareto([trial(0, 0.1, 2)], "sise")
