"""Scores of samples, whose mean is the metric: how they are read, and how a study keeps them."""

import base64
import json
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import EvaluationError

Scores = Mapping[str, Tensor]  # by metric, fp64 [samples]

_FEW = 256  # different scores, of which a byte for each sample names one


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


def all_scores(given: Iterator[Any]) -> Tensor:
    """Return the scores of all batches, fp64 [samples].

    Raises:
        EvaluationError: a score is no finite number, or there is none.
    """
    scores = torch.cat([torch.zeros(0, dtype=torch.float64), *read_scores(given)])
    if not len(scores):
        raise EvaluationError("the evaluation yielded no score; yield, for each batch, a tensor of its samples' scores")
    return scores


def is_scores(value: Any) -> bool:
    """Return whether a value is one-dimensional and holds several numbers: a score for each sample."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 1
    return getattr(value, "ndim", 0) == 1 and len(value) > 1


def scores_of(given: Any) -> Tensor:
    """Return scores that were given at once, fp64 [samples].

    Raises:
        EvaluationError: a score is no finite number, or there are several for a sample.
    """
    scores = _batch(given)
    if len(scores) != len(given):
        raise EvaluationError(
            f"the evaluation returned {len(scores)} scores for {len(given)} samples; return one number for each sample"
        )
    return scores


def pack(scores: Scores) -> str:
    """Return scores as a short text, from which `unpack` reads them without loss."""
    return json.dumps({name: _packed(each) for name, each in scores.items()}, separators=(",", ":"))


def unpack(text: str) -> dict[str, Tensor]:
    """Return the scores that `pack` wrote."""
    return {name: _unpacked(each) for name, each in json.loads(text).items()}


def _packed(scores: Tensor) -> dict[str, Any]:
    values, codes = scores.unique(return_inverse=True)
    few = len(values) <= _FEW
    content = (codes.to(torch.uint8) if few else scores).numpy().tobytes()
    text = base64.b64encode(zlib.compress(content, 9)).decode()
    return {"values": values.tolist(), "codes": text} if few else {"scores": text}


def _unpacked(kept: Mapping[str, Any]) -> Tensor:
    content = bytearray(zlib.decompress(base64.b64decode(kept["codes" if "codes" in kept else "scores"])))
    if "codes" not in kept:
        return torch.frombuffer(content, dtype=torch.float64)
    values = torch.tensor(kept["values"], dtype=torch.float64)
    return values[torch.frombuffer(content, dtype=torch.uint8).long()]


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
