"""What is tried next, on spaces that are known."""

from itertools import pairwise

import numpy as np
import pytest
from fake import FLOAT, FakeModel, pair, search_of

from subbyte.tuning.accuracy import Accuracy
from subbyte.tuning.choices import Choices
from subbyte.tuning.expected_savings import ExpectedSavings
from subbyte.tuning.search import Search
from subbyte.tuning.sensitivity import deviations, parts_of

RUNGS = (pair(8), pair(6), pair(4), pair(3), pair(2), FLOAT)


def savings_of(search: Search) -> tuple[Choices, ExpectedSavings]:
    among = {op.key: search.useful(op.key) for op in search.space.tunable}
    choices = Choices(search, deviations(parts_of(search, among), among))
    return choices, ExpectedSavings(search, choices)


def search_small(**given: object) -> Search:
    names = {"a": 10, "b": 40, "c": 20, "d": 30}
    sensitivities = {"a": 1.0, "b": 0.3, "c": 3.0, "d": 0.01}
    return search_of(FakeModel(names, sensitivities, alternatives=dict.fromkeys(names, RUNGS)), **given)  # type: ignore[arg-type]


def test_nothing_is_proposed_twice_and_the_end_comes() -> None:
    choices, promises = savings_of(search_small())
    seen: list[tuple[int, ...]] = []
    while rows := promises.best(1):
        (row,) = rows
        error = float(np.square(choices.deviations(row[None])).sum() / 2)
        seen.append(tuple(row))
        promises.learn(row, error, met=error <= 0.01)
        assert len(seen) < 100
    assert len(seen) == len(set(seen)) > 1


def test_side_by_side_proposals_differ() -> None:
    _, promises = savings_of(search_small())
    rows = promises.best(4)
    assert len({row.tobytes() for row in rows}) == 4


def test_each_proposal_is_cheaper_than_the_best_so_far() -> None:
    choices, promises = savings_of(search_small())
    (first,) = promises.best(1)
    promises.learn(first, 0.0, met=True)
    for _ in range(5):
        (row,) = promises.best(1)
        assert choices.costs(row[None])[0] < choices.costs(first[None])[0]
        promises.learn(row, 0.02, met=False)


def test_what_is_near_to_what_was_good_enough_comes_first() -> None:
    names = [f"op{index}" for index in range(20)]
    model = FakeModel(dict.fromkeys(names, 10), dict.fromkeys(names, 5.0), dict.fromkeys(names, RUNGS))
    choices, promises = savings_of(search_of(model, max_loss=0.1))
    errors = []
    for _ in range(6):
        (row,) = promises.best(1)
        errors.append(float(np.square(choices.deviations(row[None])).sum() / 2))
        promises.learn(row, 0.0, met=True)
    assert all(one < other <= 2 * one * (1 + 1e-9) for one, other in pairwise(errors))


def test_a_step_that_is_too_large_is_taken_where_there_is_no_smaller_one() -> None:
    model = FakeModel({"a": 10}, {"a": 1.0}, {"a": (pair(8), pair(3), FLOAT)})
    choices, promises = savings_of(search_of(model))
    promises.learn(np.array([1]), 0.0, met=True)
    assert choices.chosen(np.array([1])) == {("a", "Linear"): pair(8)}
    (row,) = promises.best(1)
    assert choices.chosen(row) == {("a", "Linear"): pair(3)}


def test_where_all_fail_the_most_accurate_is_the_last() -> None:
    choices, promises = savings_of(search_small())
    last = None
    while rows := promises.best(1):
        last = rows[0]
        promises.learn(last, float("inf"), met=False)
    assert last is not None
    assert not choices.deviations(last[None]).any()


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 100.0])
def test_absolute_losses_are_searched_alike_in_every_unit(scale: float) -> None:
    search = search_small()
    search.accuracy, search.baseline = Accuracy(0.01 * scale, "absolute"), {"metric": scale}
    choices, promises = savings_of(search)
    seen = []
    while rows := promises.best(1):
        error = float(np.square(choices.deviations(rows[0][None])).sum() / 2)
        seen.append(choices.costs(rows[0][None])[0])
        promises.learn(rows[0], scale * error, met=error <= 0.01)
    assert len(seen) > 3
    assert min(seen) < 0.2


def test_without_a_failure_a_small_chance_is_worth_a_trial() -> None:
    choices, promises = savings_of(search_small(max_loss=0.0))
    (first,) = promises.best(1)
    promises.learn(first, 0.0, met=True)
    (second,) = promises.best(1)
    assert choices.costs(second[None])[0] < choices.costs(first[None])[0]


def test_of_what_errs_alike_the_dearest_is_the_safest() -> None:
    names = {"a": 10, "b": 40}
    search = search_of(FakeModel(names, dict.fromkeys(names, 0.0), alternatives=dict.fromkeys(names, RUNGS)))
    choices, promises = savings_of(search)
    assert choices.costs(promises._safest[None])[0] == 1.0


def test_a_trial_that_failed_teaches_as_one_that_lost_twice_what_is_tolerable() -> None:
    _, promises = savings_of(search_small())
    (row,) = promises.best(1)
    promises.learn(row, float("inf"), met=False)
    _, other = savings_of(search_small())
    other.best(1)
    other.learn(row, 0.02, met=False)
    assert [each.tolist() for each in promises.best(3)] == [each.tolist() for each in other.best(3)]


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_few_failures_do_not_end_the_search(failures: int) -> None:
    def cheapest(failing: int) -> float:
        choices, promises = savings_of(search_small())
        least, trials = np.inf, 0
        while (rows := promises.best(1)) and trials < 20:
            error = float(np.square(choices.deviations(rows[0][None])).sum() / 2)
            trials += 1
            loss = np.inf if trials <= failing else error
            promises.learn(rows[0], loss, met=loss <= 0.01)
            least = min(least, choices.costs(rows[0][None])[0]) if loss <= 0.01 else least
        return float(least)

    assert cheapest(failures) <= 1.2 * cheapest(0)


def test_budgets_that_what_ops_add_says_nothing_of_end_the_search() -> None:
    search = search_small(budgets={"bops": 60_000.0})
    search.keeps_budgets = lambda chosen: False  # type: ignore[method-assign]
    _, promises = savings_of(search)
    assert len(promises.best(1)) == 1  # the most accurate, so that there is a trial
    assert promises.best(1) == []


def test_what_is_good_enough_elsewhere_is_to_be_beaten() -> None:
    choices, promises = savings_of(search_small())
    _, other = savings_of(search_small())
    before = promises.most()
    (row,) = other.best(1)
    other.learn(row, 0.0, met=True)
    promises.learn_from(other, row, 0.0)
    assert 0 < promises.most() < before
    for each in promises.best(5):
        assert choices.costs(each[None])[0] < choices.costs(row[None])[0]


def test_once_a_trial_lost_too_much_elsewhere_small_chances_count_no_more() -> None:
    model = FakeModel({"a": 10}, {"a": 1.6}, {"a": (pair(8), pair(2), FLOAT)})
    (_, promises), (_, other) = (savings_of(search_of(model)) for _ in range(2))
    promises.learn(np.array([1]), 0.0, met=True)
    assert promises.most() > 0
    other.learn(np.array([0]), 0.5, met=False)
    promises.learn_from(other, np.array([0]), 0.5)
    assert promises.most() == 0


def test_where_nothing_can_be_cheaper_nothing_is_promised() -> None:
    choices, promises = savings_of(search_small())
    promises.learn(promises._frontier[np.argmin(choices.costs(promises._frontier))], 0.0, met=True)
    assert promises.most() == 0
    assert promises.best(1) == []


def test_a_candidate_is_recovered_where_choices_are() -> None:
    search = search_small()
    choices, promises = savings_of(search)
    (row,) = promises.best(1)
    assert promises.candidate(row) == search.candidate(choices.chosen(row))
    assert ExpectedSavings(search, choices, recovered=True).candidate(row).recovered
