"""Hard budgets: none is ever exceeded, and what can be kept is found."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from fake import FLOAT, FakeModel, pair, play, search_of, widths
from torch import nn

import subbyte
from subbyte import TuneConfig
from subbyte.cli.digits import DigitNet
from subbyte.errors import TuningError
from subbyte.tuning.budget import check_budgets
from subbyte.tuning.ladder import bits
from subbyte.tuning.search import Search
from subbyte.tuning.strategies import registered_strategies, strategy_of
from subbyte.tuning.trial import Trial, best_of

ALTERNATIVES = (pair(8), pair(4), pair(2), FLOAT)
SIZES = {"a": 100, "b": 10, "c": 30}


def small(**sensitivities: float) -> FakeModel:
    return FakeModel(SIZES, {name: sensitivities.get(name, 1.0) for name in SIZES}, dict.fromkeys(SIZES, ALTERNATIVES))


def every(search: Search) -> list[TuneConfig]:
    keys = list(search.space.alternatives)
    return [TuneConfig(dict(zip(keys, chosen, strict=True))) for chosen in product(ALTERNATIVES, repeat=len(keys))]


def losses(search: Search) -> dict[str, float]:
    """A loss that is what the strategy takes it to be: the sum of the errors."""
    return {str(config): search.model.error(config).squared for config in every(search)}


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
    search = search_of(small(), 1.0, "size", {"size": 300.0, "latency": 5.0})
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
    assert search.priced(0.0, key, config) == pytest.approx(size)
    assert search.priced(3.0, key, config) == pytest.approx(size + 3 * bops)


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


WALKS = ("sensitivity", "hawq_v2", "basic", "mse", "mse_v2", "conservative")


def played(name: str, search: Search, most: int = 60) -> list[Trial]:
    return play(
        search, strategy_of(name)(search), lambda candidate, _: search.model.error(candidate.config).squared, most
    )


PAIRS = (*(pair(weight, inputs) for weight in (8, 4, 2) for inputs in (8, 4)), FLOAT)
BINDING = [
    ("size", {"bops": 4000.0}),  # four bits by eight are 4480: inputs must be narrower, which saves no size
    ("size", {"size": 500.0, "bops": 4480.0}),
    ("bops", {"size": 600.0}),
    ("size", {"latency": 5.0}),  # which only the widest rungs keep
]


def with_narrow_inputs(**given: Any) -> Search:
    model = FakeModel(SIZES, {"a": 0.5, "b": 2.0, "c": 0.5}, dict.fromkeys(SIZES, PAIRS))
    return search_of(model, loss_fn=lambda net, batch: None, **given)


@pytest.mark.parametrize(("objective", "budgets"), BINDING)
@pytest.mark.parametrize("name", sorted({*registered_strategies()} - {"bayesian"}))
def test_every_strategy_finds_what_keeps_budgets(name: str, objective: str, budgets: dict[str, float]) -> None:
    trials = played(name, with_narrow_inputs(objective=objective, budgets=budgets, max_loss=0.05))
    best = best_of(trials)
    assert best is not None
    assert best.met
    if name not in ("conservative", "basic"):  # these judge wider models on their way
        assert all(trial.excess == 0 for trial in trials)


@pytest.mark.parametrize("name", sorted({*registered_strategies()} - {"bayesian"}))
def test_where_no_such_model_is_accurate_enough_budgets_are_kept(name: str) -> None:
    search = with_narrow_inputs(objective="size", budgets={"size": 500.0, "bops": 4480.0}, max_loss=1e-6)
    best = best_of(played(name, search))
    assert best is not None
    assert not best.met
    assert search.goal.within(best.objectives)


def test_bayesian_learns_what_a_budget_is() -> None:
    search = with_narrow_inputs(objective="size", budgets={"bops": 4000.0}, max_loss=0.05)
    trials = played("bayesian", search, 8)
    assert all(trial.excess == 0 for trial in trials)


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_goes_down_to_a_budget_that_is_far_below_what_accuracy_asks(name: str) -> None:
    search = search_of(small(), 1.0, budgets={"size": 300.0}, loss_fn=lambda net, batch: None)  # 280 are the least
    best = best_of(played(name, search))
    assert best is not None
    assert best.met


def test_budgets_of_which_few_configurations_keep_any_end_a_search_by_exhaustion() -> None:
    names = [f"op{index}" for index in range(12)]
    model = FakeModel(dict.fromkeys(names, 10), dict.fromkeys(names, 1.0), dict.fromkeys(names, ALTERNATIVES))
    only_one = search_of(model, 1.0, budgets={"size": 12 * 10 * 2.0})
    trials = played("exhaustive", only_one)
    assert [widths(trial) for trial in trials] == [[2] * 12]  # of 4^12
    none = search_of(model, 1.0, budgets={"size": 12 * 10 * 8.0, "latency": 12 * 10 / 8.0 - 0.1})
    assert played("exhaustive", none) == []


def test_chance_is_narrowed_until_budgets_are_kept() -> None:
    search = search_of(small(), budgets={"size": 290.0})
    trials = played("random", search, 2)
    assert all(search.goal.within(trial.objectives) for trial in trials)
    hopeless = search_of(small(), budgets={"size": 300.0, "latency": 5.0})
    assert len(played("random", hopeless, 1)) == 1


def trial(number: int, loss: float, cost: float, *, met: bool = False, excess: float = 0.0) -> Trial:
    return Trial(number, TuneConfig({}), {"metric": 1 - loss}, loss, {}, cost, met, excess=excess)


def test_the_best_of_what_is_not_good_enough_keeps_the_budgets() -> None:
    accurate = trial(0, 0.0, 10, excess=0.5)
    inside, inside_but_worse = trial(1, 0.3, 5), trial(2, 0.4, 4)
    assert best_of([accurate, inside, inside_but_worse]) is inside
    assert best_of([accurate, trial(1, 0.5, 9, excess=0.1)]) is not accurate
    assert best_of([accurate, inside, met := trial(3, 0.1, 8, met=True)]) is met


def test_an_excess_is_a_share_of_each_budget() -> None:
    goal = search_of(small(), budgets={"size": 400.0, "bops": 1000.0}).goal
    assert goal.excess({"size": 500.0, "bops": 1500.0}) == pytest.approx(0.25 + 0.5)
    assert goal.excess({"size": 400.0, "bops": 1.0}) == 0.0


@pytest.mark.parametrize("name", ["sensitivity", "basic", "conservative", "mse_v2", "tpe"])
def test_budgets_of_size_and_bit_operations_are_kept_on_a_network(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, images = DigitNet(channels=8).eval(), torch.rand(64, 1, 8, 8)
    expected = model(images).argmax(1)
    budgets = {"size": 1200.0, "bops": 1e6}  # float takes four times the bytes, and 24 times the bit operations
    result = subbyte.tune(
        model, images, lambda each: float((each(images).argmax(1) == expected).float().mean()), max_loss=0.1,
        budgets=budgets, strategy=name, max_trials=10, recover=[], storage=tmp_path / "study.db",
        loss_fn=lambda each, batch: nn.functional.cross_entropy(each(batch), each(batch).argmax(1)),
    )  # fmt: skip
    assert all(result.wanted.of_float[objective] > 4 * most for objective, most in budgets.items())
    assert all(result.best.objectives[objective] <= most for objective, most in budgets.items())
    assert subbyte.summary(result.model).totals["bytes"] <= budgets["size"]
