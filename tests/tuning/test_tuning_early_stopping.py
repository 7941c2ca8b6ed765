"""An evaluation ends as soon as it is certain that too much is lost, and is wrong no more often than it says."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from subbyte import ConfigError, EvaluationError, TuningError
from subbyte.cli.digits import DigitNet, Digits, load_digits, trained_network
from subbyte.tuning.early_stopping import EarlyStopping, SequentialTest

BATCH = 32


def answers(samples: int, right: int, seed: int) -> tuple[Tensor, Tensor]:
    """The float model is right of all; of a model that is right of so many, in random order."""
    scores = (torch.arange(samples) < right).double()
    return torch.ones(samples).double(), scores[torch.randperm(samples, generator=torch.Generator().manual_seed(seed))]


def held_against(reference: Tensor, tolerable: float, confidence: float = 0.99, **given: Any) -> SequentialTest:
    return SequentialTest(reference, tolerable, given.pop("higher", True), EarlyStopping(confidence, **given))


def test_it_errs_no_more_often_than_stated_where_the_loss_is_at_the_edge() -> None:
    """At most 50 of 1000 images may be lost, and 50 are."""
    wrong = 0
    for seed in range(400):
        reference, scores = answers(1000, 950, seed)
        wrong += held_against(reference, 0.05, 0.9).judge(iter(scores.split(BATCH))).samples is not None
    assert 0 < wrong <= 40 + 3 * 6  # 10 % of 400, and three standard errors


@pytest.mark.parametrize(("right", "at_most"), [(800, 480), (0, 64)])
def test_it_ends_early_where_much_is_lost(right: int, at_most: int) -> None:
    for seed in range(20):
        reference, scores = answers(1000, right, seed)
        verdict = held_against(reference, 0.05).judge(iter(scores.split(BATCH)))
        assert verdict.samples is not None
        assert verdict.samples <= at_most
        assert verdict.metric == pytest.approx(right / 1000, abs=0.2)


def test_what_no_sample_that_is_left_can_change_is_certain() -> None:
    reference = torch.ones(10).double()
    verdict = held_against(reference, 0.1, 1 - 1e-12).judge(iter(torch.zeros(10).split(1)))
    assert verdict.samples == 7  # six are lost: four gains leave more than one in ten


def test_a_loss_that_falls_is_turned_round() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = 2 + torch.rand(2000, generator=generator).double()
    worse = reference + 0.5 * torch.rand(2000, generator=generator)
    verdict = held_against(reference, 0.02, higher=False, highest=10.0).judge(iter(worse.split(BATCH)))
    assert verdict.samples is not None
    assert verdict.metric == pytest.approx(float(worse.mean()), abs=0.05)


def test_what_is_not_given_up_has_the_metric_is_that_of_all_samples() -> None:
    reference, scores = answers(40, 38, seed=0)
    verdict = held_against(reference, 0.05).judge(iter(scores.split(7)))
    assert (verdict.metric, verdict.samples) == (0.95, None)


def test_what_is_good_enough_is_looked_at_to_the_end() -> None:
    reference, scores = answers(1000, 1000, seed=0)
    verdict = held_against(reference, 0.5).judge(iter(scores.split(BATCH)))
    assert (verdict.metric, verdict.samples) == (1.0, None)


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (torch.full((9,), 0.5), "9 scores, and 10"),
        (torch.full((11,), 0.5), "11 scores or more, and 10"),
        (torch.full((10,), 1.5), "1.5, outside of 0 to 1"),
    ],
)
def test_scores_that_are_not_of_the_same_samples_are_refused(scores: Tensor, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        held_against(torch.full((10,), 0.5).double(), 0.001).judge(iter(scores.double().split(3)))


@pytest.mark.parametrize("wrong", [0.2, 1.0, True, "0.9", EarlyStopping])
def test_what_is_no_confidence_is_refused(wrong: Any) -> None:
    with pytest.raises(TuningError, match="early_stopping"):
        subbyte.tune(nn.Linear(2, 2), [torch.ones(1, 2)], lambda model: 1.0, early_stopping=wrong)


@pytest.fixture(scope="module")
def digits() -> tuple[Digits, Digits, DigitNet]:
    train, test = load_digits(seed=0)
    return train, test, trained_network(train, seed=0)


def counted(test: Digits) -> tuple[Callable[[nn.Module], Iterator[Tensor]], list[int]]:
    """An evaluation that yields scores, and how many of each model it came to."""
    seen: list[int] = []

    def scores(model: nn.Module) -> Iterator[Tensor]:
        seen.append(0)
        for images, labels in zip(test.images.split(BATCH), test.labels.split(BATCH), strict=True):
            with torch.no_grad():
                right = model(images).argmax(1) == labels
            seen[-1] += len(right)
            yield right

    return scores, seen


def test_a_search_looks_at_fewer_samples_and_finds_the_same(digits: Any, tmp_path: Path) -> None:
    train, test, model = digits
    scores, seen = counted(test)
    given: dict[str, Any] = {
        "strategy": "random", "max_trials": 12, "recover": [], "storage": tmp_path / "s.db", "max_loss": 0.02,
        "config": {"op_type_dict": {".*": {"weight": {"dtype": ["int2", "int8"], "algorithm": "minmax"}}}},
    }  # fmt: skip
    result = subbyte.tune(model, [train.images[:64]], scores, early_stopping=0.95, study="early", **given)
    early = [trial for trial in result.trials if trial.samples is not None]
    assert early
    assert [trial.samples for trial in early] == [count for count in seen[1:] if count < len(test.images)]
    assert not any(trial.met for trial in early)
    assert result.criterion_met
    assert result.best.metric == pytest.approx(test.accuracy(result.model))
    whole = subbyte.tune(model, [train.images[:64]], scores, study="whole", **given)
    assert [trial.config for trial in whole.trials] == [trial.config for trial in result.trials]
    for trial, full in zip(result.trials, whole.trials, strict=True):
        assert trial.metric == full.metric or trial.samples is not None
        assert trial.met == full.met
    assert sum(seen[: len(seen) - 13]) < 0.8 * sum(seen[-13:])


def test_a_search_goes_on_with_trials_that_ended_early_under_the_same_criterion_alone(
    digits: Any, tmp_path: Path
) -> None:
    train, test, model = digits
    scores, seen = counted(test)

    def run(confidence: float | None, max_loss: float = 0.02) -> Any:
        seen.clear()
        return subbyte.tune(
            model, [train.images[:64]], scores, strategy="random", max_trials=5, storage=tmp_path / "s.db",
            study="one", early_stopping=confidence, max_loss=max_loss, recover=[],
        )  # fmt: skip

    first = run(0.95)
    again = run(0.95)
    assert len(seen) == 1  # the float model, whose scores all others are held against
    assert [trial.samples for trial in again.trials] == [trial.samples for trial in first.trials]
    run(0.95, max_loss=0.45)
    assert len(seen) >= 1 + 5
    assert all(trial.samples is None for trial in run(None).trials)


def test_an_evaluation_that_returns_a_number_cannot_be_ended_early(digits: Any, tmp_path: Path) -> None:
    train, test, model = digits
    with pytest.raises(TuningError, match="yields, for each batch"):
        subbyte.tune(model, [train.images[:64]], test.accuracy, early_stopping=0.99, storage=tmp_path / "s.db")


def test_fit_ends_evaluations_early(digits: Any, tmp_path: Path) -> None:
    train, test, model = digits
    scores, seen = counted(test)
    conf = subbyte.PostTrainingQuantConfig(
        op_type_dict={".*": {"weight": {"dtype": ["int2"], "algorithm": ["minmax"]}}},
        accuracy_criterion=subbyte.AccuracyCriterion(tolerable_loss=0.001, confidence=None),
        tuning_criterion=subbyte.TuningCriterion(max_trials=4, strategy="random", objective="modelsize"),
    )
    storage = tmp_path / "s.db"
    subbyte.quantization.fit(model, conf, [train.images[:64]], scores, storage=storage, early_stopping=0.95)
    assert seen[0] == len(test.images)
    assert min(seen[1:]) < len(test.images)
    with pytest.raises(ConfigError, match="early_stopping: nothing is tuned without an evaluation"):
        subbyte.quantization.fit(model, conf, [train.images[:64]], early_stopping=0.95)
