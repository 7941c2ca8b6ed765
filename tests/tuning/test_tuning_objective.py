"""Objectives: those there are, a user's own, and what is measured at the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake import FakeModel, pair

from subbyte import TuneConfig
from subbyte.adaptor import TunableModel
from subbyte.errors import TuningError
from subbyte.tuning import Accuracy, Latency, Limits, Objective, Task, objective, read_goal, register_objective
from subbyte.tuning.measured import Measured
from subbyte.tuning.objective import objective_of
from subbyte.tuning.tune import search_best

WIDE = TuneConfig({("a", "Linear"): pair(8)})


@dataclass(frozen=True)
class Heat(Objective):
    """Joules: of each bit operation, and of each bit that is read."""

    name: str = "heat"
    unit: str = "joules"

    def of(self, model: TunableModel, config: TuneConfig) -> float:
        return model.bops(config) + 100 * model.size(config)


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    kept = dict(objective._OBJECTIVES)
    yield
    objective._OBJECTIVES.clear()
    objective._OBJECTIVES.update(kept)


class Whole:
    """Stands for a model."""


class Tunable(FakeModel):
    """Gives models that can be remembered."""

    def quantize(self, config: TuneConfig) -> Whole:
        return Whole()


def tuned(tmp_path: Path, goal: object, budgets: object = None) -> object:
    model = Tunable({"a": 10, "b": 20}, {"a": 1.0, "b": 1.0})
    wanted = read_goal(goal, budgets)  # type: ignore[arg-type]
    task = Task(lambda each: 1.0, Accuracy(), wanted, "sensitivity", storage=tmp_path / "study.db")
    return search_best(Whole(), model, task, Limits(5))


def test_names_and_aliases() -> None:
    assert objective_of("performance") == objective_of("latency") == Latency()
    assert objective_of("modelsize").name == "size"
    with pytest.raises(TuningError, match="'latancy' is unknown; did you mean 'latency'"):
        objective_of("latancy")


def test_a_users_own_objective_is_searched_and_budgeted(tmp_path: Path) -> None:
    register_objective(Heat())
    result = tuned(tmp_path, "heat", {"heat": 4e4})
    assert result.criterion_met  # type: ignore[attr-defined]
    best = result.best  # type: ignore[attr-defined]
    assert best.objectives["heat"] == 30 * 2 * 8 + 100 * 30 * 2  # all in two bits, inputs in eight
    assert best in result.pareto("heat")  # type: ignore[attr-defined]
    assert result.measured == {}  # type: ignore[attr-defined]  # it is exact


def test_a_name_stands_for_one_objective() -> None:
    register_objective(Heat())
    register_objective(Heat())  # the same again, as a notebook's cell does
    with pytest.raises(TuningError, match="'heat' is taken"):
        register_objective(Latency("heat"))


def test_latency_of_many_samples_is_an_objective_of_its_own() -> None:
    model = FakeModel({"a": 16}, {"a": 1.0})
    register_objective(Latency("throughput", samples=32))
    assert objective_of("throughput").of(model, WIDE) == 32 * objective_of("latency").of(model, WIDE) == 64.0


def test_predictions_are_measured_at_the_end(tmp_path: Path) -> None:
    result = tuned(tmp_path, "latency", {"size": 30 * 8.0})
    best = result.best.objectives["latency"]  # type: ignore[attr-defined]
    assert best == 30 / 8
    assert result.measured["latency"]["best"] == Measured(best, 2.0)  # type: ignore[attr-defined]
    assert result.measured["latency"]["float"].measured == 2.0  # type: ignore[attr-defined]


def test_an_adaptor_that_measures_nothing_says_so() -> None:
    model = FakeModel({"a": 16}, {"a": 1.0})
    for call in (lambda: TunableModel.latency(model, WIDE), lambda: TunableModel.measured_latency(model, None)):
        with pytest.raises(TuningError, match="FakeModel measures no latency; choose another objective"):
            call()
