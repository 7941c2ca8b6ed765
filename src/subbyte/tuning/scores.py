"""What an evaluation gives that yields a score for each sample: their mean is the metric."""

from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import EvaluationError


def read_scores(given: Iterator[Any]) -> Generator[Tensor, None, None]:
    """What an evaluation yielded, batch by batch: fp64 [samples of the batch].

    Closed early it closes the evaluation's generator, too.

    Raises:
        EvaluationError: a score is no finite number.
    """
    try:
        for batch in given:
            yield _batch(batch)
    finally:
        if hasattr(given, "close"):
            given.close()


def mean_score(given: Iterator[Any]) -> float:
    """The metric.

    Raises:
        EvaluationError: a score is no finite number, or there is none.
    """
    scores = torch.cat([torch.zeros(0, dtype=torch.float64), *read_scores(given)])
    if not len(scores):
        raise EvaluationError("the evaluation yielded no score; yield, for each batch, a tensor of its samples' scores")
    return float(scores.mean())


def _batch(given: Any) -> Tensor:
    try:
        scores = torch.as_tensor(given).detach().double().cpu().flatten()
    except (TypeError, ValueError, RuntimeError) as error:
        raise EvaluationError(
            f"the evaluation yielded {type(given).__name__}, and the scores of a batch's samples are expected, as a "
            f"tensor or a list of numbers ({error})"
        ) from error
    if not scores.isfinite().all():
        bad = scores[~scores.isfinite()][0]
        raise EvaluationError(f"the evaluation yielded the score {float(bad)}, which is no finite number")
    return scores
