"""The scores that an evaluation yields."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from subbyte import EvaluationError
from subbyte.tuning.accuracy import read_metrics
from subbyte.tuning.scores import read_scores


def test_the_metric_is_the_mean_over_samples_of_all_batches() -> None:
    batches = (torch.tensor([True, False]), [0.25, 0.5, 0.75], numpy.float32(0.5))
    assert read_metrics(iter(batches)) == {"metric": (1 + 0 + 1.5 + 0.5) / 6}


@pytest.mark.parametrize(
    ("given", "says"),
    [([], "no score"), ([[1.0, float("nan")]], "nan"), (["good"], "str"), ([{"top1": 1.0}], "dict"), ([None], "None")],
)
def test_what_is_no_score_is_refused(given: Any, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        read_metrics(iter(given))


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
