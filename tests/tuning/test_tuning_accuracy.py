"""What a loss of accuracy is, and which metrics there may be."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from subbyte.errors import EvaluationError, TuningError
from subbyte.tuning.accuracy import Accuracy, read_metrics


@pytest.mark.parametrize(
    "value", [0.5, 1, np.float32(0.5), np.float64(2), np.array(0.5), torch.tensor(0.5), torch.tensor([3])]
)
def test_numbers_of_all_kinds(value: Any) -> None:
    assert read_metrics(value) == {"metric": pytest.approx(float(value))}


def test_metrics_by_name() -> None:
    assert read_metrics({"top1": torch.tensor(0.5), "loss": 2}) == {"top1": 0.5, "loss": 2.0}


@pytest.mark.parametrize("value", [None, "0.5", True, math.nan, math.inf, {}, {"a": None}, [0.5], torch.zeros(2)])
def test_what_is_no_metric(value: Any) -> None:
    with pytest.raises(EvaluationError):
        read_metrics(value)


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
