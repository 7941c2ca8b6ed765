"""Choices as rows, against every choice there is."""

from itertools import product

import numpy as np
import pytest
from fake import FLOAT, FakeModel, pair, search_of

from subbyte.tuning.choices import Choices
from subbyte.tuning.deviation import Deviations
from subbyte.tuning.search import Search
from subbyte.tuning.sensitivity import deviations, parts_of

RUNGS = (pair(8), pair(4), pair(3), pair(2), FLOAT)


def small(objective: str = "size", budgets: dict[str, float] | None = None) -> tuple[Search, Deviations, Choices]:
    names = {"a": 10, "b": 40, "c": 20}
    model = FakeModel(names, {"a": 1.0, "b": 0.3, "c": 3.0}, alternatives=dict.fromkeys(names, RUNGS))
    search = search_of(model, objective=objective, budgets=budgets)
    found = deviations_of(search)
    return search, found, Choices(search, found)


def deviations_of(search: Search) -> Deviations:
    among = {op.key: search.useful(op.key) for op in search.space.tunable}
    return deviations(parts_of(search, among), among)


def every(choices: Choices) -> np.ndarray:
    return np.array(list(product(range(len(RUNGS)), repeat=3)))


def test_rows_cost_and_deviate_as_their_configurations() -> None:
    search, _, choices = small(budgets={"bops": 30_000.0})
    rows = every(choices)
    widest = search.of_float["size"]
    for row, cost, deviation, excess in zip(
        rows, choices.costs(rows), choices.deviations(rows), choices.excess(rows), strict=True
    ):
        config = search.space.config(choices.chosen(row))
        assert cost == pytest.approx(search.cost(config) / widest)
        assert np.square(deviation).sum() / 2 == pytest.approx(search.model.error(config).squared, rel=1e-5, abs=1e-12)
        assert excess == pytest.approx(max(search.model.bops(config) / 30_000 - 1, 0.0))


def test_the_frontier_has_the_least_error_for_its_cost() -> None:
    _, _, choices = small()
    rows, frontier = every(choices), choices.frontier()
    errors, costs = np.square(choices.deviations(rows)).sum(1), choices.costs(rows)
    assert len(frontier) > 6
    for row in frontier:
        error, cost = np.square(choices.deviations(row[None])).sum(), choices.costs(row[None])[0]
        assert not ((costs <= cost + 1e-12) & (errors < error * (1 - 1e-9))).any()


def test_errors_that_cancel_are_chosen_together() -> None:
    search, _, _ = small()
    keys = [op.key for op in search.space.tunable]
    one = np.array([1.0, 0.0])
    narrow, wide = RUNGS[3], FLOAT
    deviations = Deviations(
        {
            keys[0]: {wide: 0 * one, narrow: one},
            keys[1]: {wide: 0 * one, narrow: -one},
            keys[2]: {wide: 0 * one, narrow: np.array([0.0, 1.0])},
        }
    )
    choices = Choices(search, deviations)
    narrowed = [
        {key[0] for key, config in choices.chosen(row).items() if config == narrow} for row in choices.frontier()
    ]
    assert {"a", "b"} in narrowed
    assert {"c"} not in narrowed


def test_near_rows_are_steps_and_exchanges() -> None:
    _, _, choices = small()
    row = np.array([0, 2, 4])
    found = {tuple(int(x) for x in each - row) for each in choices.near(row)}
    steps = {(1, 0, 0), (2, 0, 0), (0, 1, 0), (0, -1, 0), (0, 2, 0), (0, -2, 0), (0, 0, -1), (0, 0, -2)}
    assert found == steps | {(1, -1, 0), (1, 0, -1), (0, 1, -1)}


def test_what_gives_no_numbers_is_never_chosen() -> None:
    search, _, _ = small()
    model = search.model
    whole = model.output_error

    def broken(key, config):  # type: ignore[no-untyped-def]
        error = whole(key, config)
        if key[0] == "b" and config.weight == RUNGS[3].weight:
            return type(error)(error.squared, error.deviation * np.nan)
        return error

    model.output_error = broken  # type: ignore[method-assign]
    search.op_errors.clear()  # which are measured once
    found = deviations_of(search)
    assert RUNGS[3] not in found.alternatives(("b", "Linear"))
    assert RUNGS[3] in found.alternatives(("a", "Linear"))
