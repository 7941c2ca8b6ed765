"""Recovery in a search: quick in its trials, in full for the best, and within its time."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from optuna.storages import InMemoryStorage
from torch import nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import RecoveryMethod
from subbyte.algorithms import Stage
from subbyte.tuning import Limits


class Counted(RecoveryMethod):
    """Notes each unit that it works on, and its form."""

    stage: ClassVar[Stage] = Stage.ROUNDING
    calls: ClassVar[list[tuple[bool, int]]] = []
    is_quick: bool = False

    def quick(self) -> "Counted":
        return self.model_copy(update={"is_quick": True})

    def units(self, model: Any) -> list[str]:
        return list(model.ops)

    def apply(self, model: Any, unit: str, generator: torch.Generator) -> None:
        self.calls.append((self.is_quick, sum(batch.samples for batch in model.batches)))
        op = model.ops[unit]
        op.write_weight(op.quantized() + (0.0 if self.is_quick else 1e-9))


subbyte.register_algorithm("test_counted")(Counted)


@pytest.fixture
def calls() -> Iterator[list[tuple[bool, int]]]:
    Counted.calls.clear()
    yield Counted.calls
    Counted.calls.clear()


def tune(evaluate: Any, **given: Any) -> subbyte.TuneResult:
    model, images = randomized(ResidualNet()).eval(), seeded((160, 3, 6, 6))
    asked = {"max_trials": 3, "storage": InMemoryStorage(), "strategy": "random"} | given
    return subbyte.tune(model, images, evaluate, **asked)


def test_trials_are_recovered_quickly_and_the_best_in_full(calls: list[tuple[bool, int]]) -> None:
    evaluated: list[nn.Module] = []

    def evaluate(model: nn.Module) -> float:
        evaluated.append(model)
        return 1.0 if len(evaluated) == 1 or calls else 0.5

    result = tune(evaluate, recover="test_counted")
    assert [trial.recovery for trial in result.trials[:2]] == ["none", "quick"]
    assert result.best.recovery == "full"
    assert result.recovery == "test_counted"
    assert (True, 64) in calls
    assert calls[-1] == (False, 160)


def test_the_model_of_the_best_is_not_recovered_again(calls: list[tuple[bool, int]]) -> None:
    def evaluate(model: nn.Module) -> float:
        for parameter in model.parameters():
            parameter.data.zero_()  # what an evaluation changes is not kept
        counts.append(len(calls))
        return 1.0 if len(counts) == 1 or calls else 0.5

    counts: list[int] = []
    result = tune(evaluate, recover="test_counted")
    assert len(calls) == counts[-1]
    again = subbyte.quantize(
        randomized(ResidualNet()).eval(), result.best.config, seeded((160, 3, 6, 6)), recover="test_counted"
    )
    x = seeded((2, 3, 6, 6))
    assert torch.equal(result.model(x), again(x))


def test_recovery_ends_between_two_units_when_the_time_is_over(
    calls: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "is_late", lambda limits: len(calls) >= 2)
    counts: list[int] = []

    def evaluate(model: nn.Module) -> float:
        counts.append(len(calls))
        return 1.0 if len(counts) == 1 else 0.5

    result = tune(evaluate, recover="test_counted")
    assert len(calls) == 2
    assert [trial.recovery for trial in result.trials] == ["none"]


@pytest.mark.parametrize("samples", [4, 16])
def test_recovery_by_default_is_left_out_where_it_cannot_work(samples: int) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    result = subbyte.tune(model, seeded((samples, 8)), lambda model: 1.0, max_trials=1, storage=InMemoryStorage())
    if samples == 4:
        assert result.recovery.startswith("none: recovery method ")
        assert "4 calibration samples are too few" in result.recovery
    else:
        assert result.recovery == "auto(minutes=1.0)"
