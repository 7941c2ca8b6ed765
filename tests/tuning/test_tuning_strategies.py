"""Every strategy finds good models on planted problems, and walks as it says."""

from collections.abc import Callable
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
from fake import FLOAT, LADDER, FakeModel, pair, play, search_of, trial_of, widths

from subbyte import OpConfig
from subbyte.errors import TuningError
from subbyte.tuning import registered_strategies
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.ladder import bits
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.space import TuningSpace
from subbyte.tuning.strategies import register_strategy, strategy_of
from subbyte.tuning.strategies.path import _between
from subbyte.tuning.strategies.steps import model_wise, op_type_wise, op_wise
from subbyte.tuning.trial import Trial, best_of

Losses = Callable[[Candidate, int], float]

SIZES = {"a": 1000, "b": 200, "c": 4000, "d": 100}
SENSITIVITIES = {"a": 0.1, "b": 5.0, "c": 0.3, "d": 40.0}


def planted(model: FakeModel) -> Losses:
    """The loss is the sum of the errors."""
    return lambda candidate, number: model.error(candidate.config).squared


def found(name: str, most: int = 120, **given: Any) -> tuple[list[Trial], Trial]:
    model = FakeModel(SIZES, SENSITIVITIES)
    search = search_of(model, loss_fn=lambda net, batch: None, **given)
    trials = play(search, strategy_of(name)(search), planted(model), most)
    best = best_of(trials)
    assert best is not None
    return trials, best


def optimum() -> int:
    """The smallest model that is good enough, by trying every one."""
    model = FakeModel(SIZES, SENSITIVITIES)
    sizes = []
    for configs in product(LADDER, repeat=4):
        config = search_of(model).space.config(dict(zip(model.alternatives, configs, strict=True)))
        if model.error(config).squared <= 0.01:
            sizes.append(model.size(config))
    return min(sizes)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("sensitivity", 1.02), ("auto", 1.02), ("hawq_v2", 1.02), ("mse", 1.35), ("mse_v2", 1.35), ("basic", 1.35),
        ("conservative", 1.35), ("tpe", 1.5), ("random", 2.0),
    ],
)  # fmt: skip
def test_it_comes_near_the_smallest_model_there_is(name: str, share: float) -> None:
    _, best = found(name)
    assert best.met
    assert best.cost <= share * optimum()


def test_bayesian_learns() -> None:
    trials, best = found("bayesian", most=25)
    assert best.met
    assert best.cost < trials[0].cost


def test_sensitivity_takes_few_trials() -> None:
    trials, best = found("sensitivity")
    assert best.number < 12
    assert len({str(widths(trial)) for trial in trials}) == len(trials)  # none twice


@pytest.mark.parametrize("name", sorted({*registered_strategies()} - {"bayesian"}))
def test_the_same_seed_gives_the_same_trials(name: str) -> None:
    first, second = ([widths(trial) for trial in found(name, most=20)[0]] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_another_seed_gives_others(name: str) -> None:
    first, second = ([widths(trial) for trial in found(name, most=5, seed=seed)[0]] for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize("name", sorted({*registered_strategies()} - {"bayesian", "random", "tpe", "exhaustive"}))
def test_an_op_goes_from_rung_to_rung_and_never_straight_to_float(name: str) -> None:
    _, best = found(name, most=60)
    assert set(widths(best)) & {3, 4, 5, 6, 7}
    assert 32 not in widths(best)


@pytest.mark.parametrize("name", registered_strategies())
def test_where_nothing_is_good_enough_it_ends_or_goes_on_without_harm(name: str) -> None:
    model = FakeModel({"a": 10, "b": 20}, {"a": 1.0, "b": 1.0})
    search = search_of(model, loss_fn=lambda net, batch: None)
    trials = play(search, strategy_of(name)(search), lambda candidate, number: 1.0, most=30)
    assert trials
    assert not any(trial.met for trial in trials)


# Intel Neural Compressor's samplers and order, as behaviours.

VARIANTS = (pair(8), pair(8, algorithm="mse"), FLOAT)


def test_counts_of_configurations() -> None:
    model = FakeModel(
        {"a": 1, "b": 1, "c": 1}, {"a": 1.0, "b": 1.0, "c": 1.0},
        alternatives={"a": VARIANTS, "b": VARIANTS, "c": VARIANTS[:2]}, types={"c": "Conv2d"},
    )  # fmt: skip
    space = TuningSpace(model.ops, model.alternatives)
    assert len(list(model_wise(space))) == 3
    assert len(list(op_type_wise(space))) == 3 * 2
    assert len(list(op_wise(space))) == 3 * 3 * 2


def walked(losses: Losses, name: str = "basic", most: int = 100, **given: Any) -> list[Trial]:
    sizes = dict.fromkeys("abc", 10)
    model = FakeModel(sizes, dict.fromkeys("abc", 1.0), alternatives=dict.fromkeys("abc", (pair(8), pair(4), FLOAT)))
    search = search_of(model, **given)
    return play(search, strategy_of(name)(search), losses, most)


def test_basic_tries_four_bits_once_eight_pass() -> None:
    trials = walked(lambda candidate, number: 0.0)
    assert [widths(trial) for trial in trials] == [[8, 8, 8], [4, 4, 4]]


def test_basic_falls_back_one_by_one_from_the_last_op_then_together() -> None:
    # Four bits fail; op b gains most when it is wider, then c.
    gains = {"a": 0.1, "b": 0.3, "c": 0.2}

    def loss(candidate: Candidate, number: int) -> float:
        narrow = {name for (name, _), config in candidate.config.op.items() if bits(config.weight) == 4}
        return sum(gains[name] for name in narrow) - 0.095

    trials = [widths(trial) for trial in walked(loss)]
    assert trials[:2] == [[8, 8, 8], [4, 4, 4]]
    assert trials[2:5] == [[4, 4, 8], [4, 8, 4], [8, 4, 4]]  # one by one, from the last
    assert trials[5] == [4, 8, 8]  # [4, 8, 4] is known; with c it is good enough
    assert len(trials) == 6  # each op a rung narrower from there is known


def test_basic_adds_up_fallbacks_the_one_that_gains_most_first() -> None:
    gains = dict(zip("abcde", (0.1, 0.5, 0.2, 0.4, 0.3), strict=True))
    model = FakeModel(dict.fromkeys(gains, 10), gains, alternatives=dict.fromkeys(gains, (pair(8), pair(4), FLOAT)))
    search = search_of(model)

    def loss(candidate: Candidate, number: int) -> float:
        narrow = {name for (name, _), config in candidate.config.op.items() if bits(config.weight) == 4}
        return 0.0 if len(narrow) <= 1 else sum(gains[name] for name in narrow)

    trials = [widths(trial) for trial in play(search, strategy_of("basic")(search), loss)]
    one_by_one = [[4 if index != wide else 8 for index in range(5)] for wide in reversed(range(5))]
    assert trials[2:7] == one_by_one  # as many trials as ops
    assert trials[7:10] == [[4, 8, 4, 8, 4], [4, 8, 4, 8, 8], [4, 8, 8, 8, 8]]  # one more each, till it is good enough
    assert trials[10:] == [[4, 4, 8, 8, 8], [4, 8, 8, 4, 8], [4, 8, 8, 8, 4]]  # each other one down; one is known


def test_basic_goes_on_to_float_when_eight_bits_are_not_enough() -> None:
    def loss(candidate: Candidate, number: int) -> float:
        return 0.5 * sum(config != FLOAT for config in candidate.config.op.values())

    trials = [widths(trial) for trial in walked(loss)]
    assert trials[0] == [8, 8, 8]
    assert trials[1:4] == [[8, 8, 32], [8, 32, 8], [32, 8, 8]]
    assert [32, 32, 32] in trials
    assert not any(4 in trial for trial in trials)  # nothing narrower than what fails


def test_basic_tries_algorithms_type_by_type_first() -> None:
    model = FakeModel(dict.fromkeys("ab", 10), dict.fromkeys("ab", 1.0), alternatives=dict.fromkeys("ab", VARIANTS))
    search = search_of(model)

    def loss(candidate: Candidate, number: int) -> float:
        return 0.0 if all(c.weight and c.weight.algorithm == "mse" for c in candidate.config.op.values()) else 0.5

    trials = play(search, strategy_of("basic")(search), loss)
    assert [[c.weight.algorithm for c in trial.config.op.values() if c.weight] for trial in trials[:2]] == [
        ["minmax", "minmax"],
        ["mse", "mse"],
    ]
    assert trials[1].met


@pytest.mark.parametrize(
    ("losses", "chosen"), [([0.5, 0.4, 0.3, 0.005, 0.2, 0.1], 3), ([0.5, 0.3, 0.4, 0.2, 0.9, 0.6], 3)]
)
def test_scripted_losses_choose_the_trial(losses: list[float], chosen: int) -> None:
    trials = walked(lambda candidate, number: losses[number], most=6)
    best = best_of(trials)
    assert len(trials) <= 6
    assert best is not None
    assert best.number == chosen


def test_conservative_keeps_only_what_is_good_enough() -> None:
    def loss(candidate: Candidate, number: int) -> float:
        config = {name: each for (name, _), each in candidate.config.op.items()}
        return 0.5 if bits(config["b"].weight) < 8 else 0.0

    trials = walked(loss, "conservative")
    best = best_of(trials)
    assert best is not None
    assert widths(best) == [4, 8, 4]
    assert widths(trials[0]) == [32, 32, 32]


def test_recovery_is_tried_before_a_wider_rung() -> None:
    trials = walked(lambda candidate, number: 0.0 if candidate.recovered else 0.5, recipes=["some method"])
    assert [(widths(trial), trial.recovered) for trial in trials] == [
        ([8, 8, 8], False), ([8, 8, 8], True), ([4, 4, 4], False), ([4, 4, 4], True),
    ]  # fmt: skip


def least_recovered() -> int:
    """The smallest model that is good enough once it is recovered, by trying every one."""
    model = FakeModel(SIZES, SENSITIVITIES)
    search = search_of(model)
    configs = (
        search.space.config(dict(zip(model.alternatives, each, strict=True))) for each in product(LADDER, repeat=4)
    )
    return min(model.size(config) for config in configs if model.error(config, recover=nothing).squared <= 0.01)


def nothing(model: Any) -> None:
    """What FakeModel knows the outcome of."""


def searched(loss: Callable[[FakeModel, Candidate], float]) -> list[Trial]:
    model = FakeModel(SIZES, SENSITIVITIES)
    search = search_of(model, recipes=["some method"])
    with patch("subbyte.tuning.search.recover"):
        return play(search, strategy_of("sensitivity")(search), lambda candidate, number: loss(model, candidate))


def test_sensitivity_goes_by_what_recovery_leaves_of_each_op() -> None:
    trials = searched(
        lambda model, candidate: model.error(candidate.config, nothing if candidate.recovered else None).squared
    )
    best = best_of(trials)
    assert best is not None
    assert best.recovered
    assert least_recovered() <= best.cost <= 1.02 * least_recovered() < optimum()
    assert best.number < 12


def test_sensitivity_does_without_recovery_that_harms() -> None:
    trials = searched(lambda model, candidate: 0.5 if candidate.recovered else model.error(candidate.config).squared)
    best = best_of(trials)
    assert best is not None
    assert not best.recovered
    assert best.cost <= 1.02 * optimum()
    assert sum(trial.recovered for trial in trials) < len(trials) / 2


@pytest.mark.parametrize("name", ["random", "exhaustive", "tpe", "bayesian", "mse", "basic"])
def test_every_strategy_recovers_what_loses_too_much(name: str) -> None:
    model = FakeModel({"a": 10, "b": 20}, {"a": 1.0, "b": 1.0})
    search = search_of(model, recipes=["some method"])
    trials = play(search, strategy_of(name)(search), lambda candidate, number: 0.0 if candidate.recovered else 0.5, 8)
    plain = [trial.config for trial in trials if not trial.recovered]
    assert [trial.config for trial in trials if trial.recovered] in (plain, plain[:-1])


def test_hawq_needs_a_loss() -> None:
    model = FakeModel(SIZES, SENSITIVITIES)
    search = search_of(model)
    with pytest.raises(TuningError, match=r"hawq_v2.*loss_fn"):
        next(strategy_of("hawq_v2")(search))


def test_hawq_leaves_its_perturbations_and_no_errors() -> None:
    model = FakeModel(SIZES, SENSITIVITIES)
    search = search_of(model, loss_fn=lambda net, batch: None)
    next(strategy_of("hawq_v2")(search))
    four = OpConfig(weight=pair(4).weight, quant_mode="weight_only")
    assert search.perturbations["b", "Linear"][four] == pytest.approx(5.0 * 4.0**-4)
    assert len(search.perturbations["b", "Linear"]) == 7  # float perturbs nothing
    assert search.errors == search.part_errors == {}


def test_a_strategy_of_ones_own() -> None:
    @register_strategy("narrowest_of_a_test")
    def narrowest(search: Search) -> Any:
        yield [search.candidate({op.key: search.ladder(op.key)[0] for op in search.space.tunable})]

    _, best = found("narrowest_of_a_test")
    assert widths(best) == [2, 2, 2, 2]
    with pytest.raises(TuningError, match="taken"):
        register_strategy("basic")(narrowest)
    with pytest.raises(TuningError, match="'sensitivty' is unknown; did you mean 'sensitivity'"):
        strategy_of("sensitivty")


def rounds_of(workers: int) -> tuple[list[int], Trial]:
    """How many candidates each batch has, and what is found."""
    model = FakeModel(SIZES, SENSITIVITIES)
    search = search_of(model, workers=workers)
    batches: list[int] = []

    def counted() -> Proposals:
        proposals = strategy_of("sensitivity")(search)
        batch = next(proposals)
        while True:
            batches.append(len(batch))
            trials = yield batch
            try:
                batch = proposals.send(trials)
            except StopIteration:
                return

    best = best_of(play(search, counted(), planted(model)))
    assert best is not None
    return batches, best


def test_several_workers_share_the_rounds_of_the_bisection() -> None:
    (alone, of_one), (together, of_three) = rounds_of(1), rounds_of(3)
    assert set(alone) == {1}
    assert max(together) == 3
    assert len(together) < 0.7 * len(alone)
    assert of_one.met
    assert of_three.met
    assert of_three.cost <= 1.02 * optimum()


def test_points_between_are_evenly_spaced() -> None:
    assert _between(0, 10, 1) == [5]
    assert _between(0, 16, 3) == [4, 8, 12]
    assert _between(3, 6, 8) == [4, 5]
    assert _between(2, 4, 2) == [3]


def test_recovery_is_tried_on_each_of_a_round() -> None:
    model = FakeModel(SIZES, SENSITIVITIES)
    search = search_of(model, workers=3, recipes=["some method"], loss_fn=lambda net, batch: None)
    proposals = strategy_of("hawq_v2")(search)
    plain = next(proposals)
    trials = [trial_of(search, candidate, loss) for candidate, loss in zip(plain, (0.0, 0.5, 0.6), strict=True)]
    recovered = proposals.send(trials)
    assert [candidate.config for candidate in recovered] == [candidate.config for candidate in plain[1:]]
    assert all(candidate.recovered for candidate in recovered)


def test_sensitivities_are_measured_once_for_each_part() -> None:
    model = FakeModel({"a": 10}, {"a": 1.0}, alternatives={"a": tuple(pair(w, a) for w in (2, 4) for a in (4, 8))})
    search = search_of(model)
    next(strategy_of("sensitivity")(search))
    assert model.measured == 2 + 1  # narrower inputs save no bytes
    assert search.errors["a", "Linear"] == {
        pair(w, 8): pytest.approx(4.0**-w + 0.1 * 4.0**-8, rel=1e-5) for w in (2, 4)
    }
    search = search_of(model, objective="bops")
    next(strategy_of("sensitivity")(search))
    assert model.measured == 2 + 1 + 2 + 2


def test_activations_are_narrowed_where_they_cost_something() -> None:
    pairs = tuple(pair(w, a) for w in (8, 4) for a in (8, 4))
    alternatives: dict[str, tuple[OpConfig, ...]] = dict.fromkeys("ab", pairs)
    model = FakeModel(dict.fromkeys("ab", 10), {"a": 1.0, "b": 1.0}, alternatives=alternatives)
    for objective, narrow in (("size", False), ("bops", True)):
        search = search_of(model, max_loss=1.0, objective=objective)
        best = best_of(play(search, strategy_of("sensitivity")(search), planted(model)))
        assert best is not None
        assert all((bits(each.activation) == 4) is narrow for each in best.config.op.values())


@pytest.mark.parametrize("strategy", ["sensitivity", "hawq_v2"])
def test_where_nothing_narrower_is_good_enough_the_widest_is_tried(strategy: str) -> None:
    search = search_of(FakeModel({"first": 10, "last": 10}, {"first": 1.0, "last": 1.0}), loss_fn=lambda *_: None)
    widest = search.space.widest()
    proposals = strategy_of(strategy)(search)
    trials = play(search, proposals, lambda candidate, _: 0.0 if candidate.config == widest else 1.0)
    assert [trial.config for trial in trials if trial.met] == [widest]


@pytest.mark.parametrize("strategy", ["tpe", "bayesian"])
def test_a_sampler_ends_where_everything_has_been_tried(strategy: str) -> None:
    search = search_of(FakeModel({"only": 100}, {"only": 1.0}))
    trials = play(search, strategy_of(strategy)(search), lambda candidate, number: 0.0)
    assert sorted(widths(trial)[0] for trial in trials) == sorted(
        bits(each.weight) for each in search.ladder(search.space.ops[0].key)
    )


def test_hawq_v2_does_not_take_a_negative_trace_for_no_curvature() -> None:
    model = FakeModel({"a": 10, "b": 20}, {"a": 1.0, "b": 1.0})
    model.hessian_traces = lambda loss_fn, seed=0: {("a", "Linear"): -1.0, ("b", "Linear"): 1.0}  # type: ignore[method-assign, assignment]
    search = search_of(model, loss_fn=lambda net, batch: None)
    best = best_of(play(search, strategy_of("hawq_v2")(search), planted(model)))
    assert best is not None
    assert best.met
    assert min(widths(best)) > 2
