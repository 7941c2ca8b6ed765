"""What a loss of accuracy is, and which metrics there may be."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from subbyte.errors import EvaluationError, TuningError
from subbyte.tuning.accuracy import Accuracy, read_evaluation


@pytest.mark.parametrize(
    "value", [0.5, 1, np.float32(0.5), np.float64(2), np.array(0.5), torch.tensor(0.5), torch.tensor([3])]
)
def test_numbers_of_all_kinds(value: Any) -> None:
    assert read_evaluation(value).metrics == {"metric": pytest.approx(float(value))}
    assert read_evaluation(value).scores is None


def test_metrics_by_name() -> None:
    assert read_evaluation({"top1": torch.tensor(0.5), "loss": 2}).metrics == {"top1": 0.5, "loss": 2.0}


@pytest.mark.parametrize(
    "value", [[1, 0, 1, 1], (1.0, 0.0, 1.0, 1.0), torch.tensor([True, False, True, True]), np.array([1, 0, 1, 1])]
)
def test_a_score_for_each_sample_is_a_metric_with_its_scores(value: Any) -> None:
    found = read_evaluation(value)
    assert found.metrics == {"metric": 0.75}
    assert found.scores is not None
    assert found.scores["metric"].tolist() == [1.0, 0.0, 1.0, 1.0]
    by_name = read_evaluation({"top1": value, "loss": [2, 3]})
    assert by_name.metrics == {"top1": 0.75, "loss": 2.5}


def test_scores_beside_a_number_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"scores of samples for \['top1'\] and numbers for the other metrics"):
        read_evaluation({"top1": [1, 0], "loss": 2.0})


@pytest.mark.parametrize(
    "value",
    [None, "0.5", True, math.nan, math.inf, {}, {"a": None}, [0.5], [0.5, math.nan], ["a", "b"], torch.zeros(2, 2)],
)
def test_what_is_no_metric(value: Any) -> None:
    with pytest.raises(EvaluationError):
        read_evaluation(value)


def test_relative_and_absolute() -> None:
    assert Accuracy().loss({"metric": 0.72}, {"metric": 0.8}) == pytest.approx(0.1)
    assert Accuracy(criterion="absolute").loss({"metric": 0.72}, {"metric": 0.8}) == pytest.approx(0.08)
    assert Accuracy(higher_is_better=False).loss({"metric": 2.2}, {"metric": 2.0}) == pytest.approx(0.1)
    assert Accuracy().loss({"metric": 0.84}, {"metric": 0.8}) == pytest.approx(-0.05)
    assert Accuracy(higher_is_better=False).loss({"metric": -2.2}, {"metric": -2.0}) == pytest.approx(-0.1)


def test_of_several_metrics_the_worst_counts_or_the_weighted_mean() -> None:
    now, before = {"a": 0.9, "b": 4.4}, {"a": 1.0, "b": 4.0}
    higher = {"a": True, "b": False}
    assert Accuracy(higher_is_better=higher).loss(now, before) == pytest.approx(0.1)
    assert Accuracy(higher_is_better=higher).loss({"a": 0.95, "b": 4.8}, before) == pytest.approx(0.2)
    weighted = Accuracy(higher_is_better=higher, weights={"a": 3, "b": 1})
    assert weighted.loss({"a": 1.0, "b": 4.8}, before) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_loss": -0.01}, "better than the float one"),
        ({"max_loss": math.nan}, "must be a number"),
        ({"max_loss": "1%"}, "must be a number"),
        ({"criterion": "relativ"}, "'relativ' is unknown; did you mean 'relative'"),
        ({"weights": {"a": -1}}, "weights"),
        ({"weights": {"a": 0}}, "weights"),
        ({"confidence": 1.0}, "confidence must be a number from 0.5 to below 1.*not 1.0"),
        ({"confidence": True}, "confidence"),
        ({"confidence": 90}, "confidence"),
    ],
)
def test_what_has_no_meaning(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TuningError, match=message):
        Accuracy(**given)


def test_what_has_no_meaning_for_these_metrics() -> None:
    with pytest.raises(TuningError, match="is 0, of which no share"):
        Accuracy().check({"metric": 0.0})
    Accuracy(criterion="absolute").check({"metric": 0.0})
    with pytest.raises(TuningError, match=r"weights names \['b'\]"):
        Accuracy(weights={"b": 1.0}).check({"a": 1.0})
    with pytest.raises(TuningError, match=r"says nothing of \['b'\]"):
        Accuracy(higher_is_better={"a": True}).check({"a": 1.0, "b": 1.0})
    with pytest.raises(EvaluationError, match="returned the metrics"):
        Accuracy().loss({"a": 1.0}, {"b": 1.0})


@pytest.mark.parametrize("max_loss", [0.5, 1.0])
def test_a_share_that_looks_like_a_percentage_is_a_warning(max_loss: float) -> None:
    with pytest.warns(
        UserWarning, match=f"max_loss={max_loss:g} lets a model lose {max_loss:.0%} .* is {max_loss:g} perc"
    ):
        Accuracy(max_loss).warn()


@pytest.mark.parametrize("given", [{"max_loss": 0.49}, {"max_loss": 1.0, "criterion": "absolute"}])
def test_a_small_share_and_a_loss_in_the_metrics_unit_are_no_warning(given: Any, recwarn: Any) -> None:
    Accuracy(**given).warn()
    assert not recwarn.list


def test_paired_losses_are_those_of_the_means() -> None:
    scores = {"a": torch.tensor([1.0, 0.0]).double(), "b": torch.tensor([3.0, 4.0]).double()}
    reference = {"a": torch.tensor([1.0, 1.0]).double(), "b": torch.tensor([2.0, 4.0]).double()}
    both = [{name: float(each.mean()) for name, each in of.items()} for of in (scores, reference)]
    for given in ({}, {"weights": {"a": 1.0, "b": 3.0}}, {"criterion": "absolute"}):
        accuracy = Accuracy(higher_is_better={"a": True, "b": False}, **given)  # type: ignore[arg-type]
        losses = [each.value for each in accuracy.paired(scores, reference)]
        assert max(losses) == pytest.approx(accuracy.loss(*both))
