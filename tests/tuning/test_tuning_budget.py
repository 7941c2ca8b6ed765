"""Hard budgets: none is ever exceeded, and what can be kept is found."""

from itertools import product

import pytest
from fake import FLOAT, FakeModel, pair, play, search_of, widths

from subbyte import TuneConfig
from subbyte.errors import TuningError
from subbyte.tuning.budget import check_budgets, priced
from subbyte.tuning.search import Search
from subbyte.tuning.space import bits
from subbyte.tuning.strategies import strategy_of

ALTERNATIVES = (pair(8), pair(4), pair(2), FLOAT)
SIZES = {"a": 100, "b": 10, "c": 30}


def small(**sensitivities: float) -> FakeModel:
    return FakeModel(SIZES, {name: sensitivities.get(name, 1.0) for name in SIZES}, dict.fromkeys(SIZES, ALTERNATIVES))


def every(search: Search) -> list[TuneConfig]:
    keys = list(search.space.alternatives)
    return [TuneConfig(dict(zip(keys, chosen, strict=True))) for chosen in product(ALTERNATIVES, repeat=len(keys))]


def losses(search: Search) -> dict[str, float]:
    """A loss that is what the strategy takes it to be: the sum of the errors."""
    return {str(config): search.model.error(config) for config in every(search)}


def run(search: Search) -> list:  # type: ignore[type-arg]
    known = losses(search)
    return play(search, strategy_of("sensitivity")(search), lambda candidate, _: known[str(candidate.config)])


def best_there_is(search: Search) -> float:
    known = losses(search)
    good = [each for each in every(search) if known[str(each)] <= search.accuracy.max_loss]
    return min(search.cost(each) for each in good if search.goal.within(search.objectives(each)))


@pytest.mark.parametrize(
    ("objective", "budgets"),
    [
        ("size", {"bops": 12000.0}),
        ("size", {"latency": 20.0}),  # narrow is slow here: size and latency pull apart
        ("bops", {"size": 900.0, "latency": 60.0}),
        ({"size": 1, "bops": 2}, {"size": 1200.0, "latency": 25.0, "bops": 12000.0}),
    ],
)
def test_what_is_found_keeps_every_budget(objective: object, budgets: dict[str, float]) -> None:
    search = search_of(small(a=2.0), 0.02, objective, budgets)
    trials = run(search)
    met = [trial for trial in trials if trial.met]
    assert met
    assert all(search.goal.within(trial.objectives) for trial in trials)  # no trial is spent on others
    assert min(trial.cost for trial in met) <= 1.3 * best_there_is(search)


class Uneven(FakeModel):
    """An op that holds nearly all weights, and one that does nearly all the work."""

    def __init__(self) -> None:
        names = ("large", "busy")
        super().__init__({"large": 1000, "busy": 1}, {"large": 1.0, "busy": 0.01}, dict.fromkeys(names, ALTERNATIVES))

    def bops(self, config: TuneConfig) -> int:
        return sum((1000 if name == "busy" else 1) * bits(each.weight) for (name, _), each in config.op.items())


def test_a_price_finds_what_the_path_of_the_cost_alone_does_not() -> None:
    # By size alone the large op, which then loses too much, goes to two bits before the busy one, which has to.
    search = search_of(Uneven(), 0.01, "size", {"bops": 3000.0})
    met = [trial for trial in run(search) if trial.met]
    assert widths(min(met, key=lambda trial: trial.cost)) == [4, 2]


def test_where_no_budget_binds_the_trials_are_those_without() -> None:
    plain, roomy = search_of(small()), search_of(small(), budgets={"bops": 1e9})
    found = [{each.cost for each in run(search) if each.met} for search in (plain, roomy)]
    assert min(found[0]) == min(found[1])


def test_budgets_that_exclude_each_other_end_with_one_trial() -> None:
    # Each can be kept by itself: 280 bytes by two bits, a latency of 4.4 by float.
    search = search_of(small(), 10.0, "size", {"size": 300.0, "latency": 5.0})
    check_budgets(search)
    trials = run(search)
    assert trials
    assert not any(trial.met for trial in trials)


def test_a_budget_that_nothing_keeps_is_refused_with_figures() -> None:
    check_budgets(search_of(small(), budgets={"size": 280.0}))
    with pytest.raises(TuningError, match=r"of 279 bytes for 'size'.* allow is 280, and the float .* takes 4480"):
        check_budgets(search_of(small(), budgets={"size": 279.0}))
    with pytest.raises(TuningError, match=r"budget of 4 seconds for 'latency'.* is 4.375, "):
        check_budgets(search_of(small(), budgets={"latency": 4.0}))


def test_a_price_is_for_each_share_of_what_is_to_be_saved() -> None:
    search = search_of(small(), budgets={"bops": 43360.0})  # of 140 * 1024, so that 100000 are to be saved
    key, config = ("b", "Linear"), pair(8, 8)
    size, bops = 10 * (8 - 32) / 4480, 10 * (64 - 1024) / 100000
    assert priced(search, key, config, 0.0) == pytest.approx(size)
    assert priced(search, key, config, 3.0) == pytest.approx(size + 3 * bops)


def test_what_an_op_adds_to_each_figure() -> None:
    search = search_of(small(), objective={"size": 1.0, "bops": 2.0}, budgets={"latency": 100.0})
    added = search.op_objectives(("c", "Linear"), pair(4, 8))
    assert added == {"size": 30 * (4 - 32), "bops": 30 * (32 - 1024), "latency": 30 / 4 - 30 / 32}
    assert search.op_cost(("c", "Linear"), pair(4, 8)) == pytest.approx(30 * (4 - 32) / 4480 + 2 * 30 * -992 / 143360)


def test_budgets_are_of_the_whole_model() -> None:
    search = search_of(small(), budgets={"size": 140 * 4.0})
    all_in_four = {op.key: pair(4) for op in search.space.ops}
    assert search.keeps_budgets(all_in_four)
    assert not search.keeps_budgets(all_in_four | {("b", "Linear"): pair(8)})
