"""The scores that an evaluation yields."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from subbyte import EvaluationError
from subbyte.tuning.accuracy import read_evaluation
from subbyte.tuning.scores import pack, read_scores, unpack


def test_the_metric_is_the_mean_over_samples_of_all_batches() -> None:
    batches = (torch.tensor([True, False]), [0.25, 0.5, 0.75], numpy.float32(0.5))
    assert read_evaluation(iter(batches)).metrics == {"metric": (1 + 0 + 1.5 + 0.5) / 6}


@pytest.mark.parametrize(
    ("given", "says"),
    [([], "no score"), ([[1.0, float("nan")]], "nan"), (["good"], "str"), ([{"top1": 1.0}], "dict"), ([None], "None")],
)
def test_what_is_no_score_is_refused(given: Any, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        read_evaluation(iter(given))


@pytest.mark.parametrize(
    "scores",
    [
        torch.tensor([0.0, 100.0, 100.0]).double(),
        torch.rand(1000, generator=torch.Generator().manual_seed(0)).double(),
        torch.arange(256).double() / 7,
        torch.arange(257).double() / 7,
    ],
)
def test_scores_are_packed_without_loss(scores: torch.Tensor) -> None:
    both = {"one": scores, "other": scores.flip(0) + 0.1}
    found = unpack(pack(both))
    assert list(found) == ["one", "other"]
    assert all(torch.equal(found[name], each) for name, each in both.items())


def test_packed_answers_take_little_more_than_a_bit_each() -> None:
    right = (torch.rand(8000, generator=torch.Generator().manual_seed(0)) < 0.9).double()
    assert len(pack({"metric": right})) < 1000


def test_an_evaluation_that_is_left_early_is_closed() -> None:
    closed = []

    def scores() -> Iterator[list[float]]:
        try:
            yield [1.0]
            yield [2.0]
        finally:
            closed.append(True)

    reader = read_scores(scores())
    next(reader)
    assert not closed
    reader.close()
    assert closed
