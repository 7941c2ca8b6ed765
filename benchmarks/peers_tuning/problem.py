"""What is searched, and what came of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from networks import Network, judge

CALIBRATION = 100  # images: what Neural Compressor takes where it is not told otherwise
MAX_LOSS = 0.01


@dataclass
class TimedEvaluation:
    """The evaluation that a library is given, which notes when it ran.

    Args:
        network: whose test data the model is judged on.
        times: when each call began and ended.
    """

    network: Network
    times: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, model: nn.Module) -> float:
        began = time.perf_counter()
        value = judge(model, self.network).value
        self.times.append((began, time.perf_counter()))
        return value


@dataclass(frozen=True)
class Problem:
    """What a library is given.

    Args:
        model: float.
        calibration: a loader of (images, labels).
        evaluate: the user's function.
        objective: what to make small, as Neural Compressor calls it.
        trials: at most.
    """

    model: nn.Module
    calibration: DataLoader[Any]
    evaluate: TimedEvaluation
    objective: str
    trials: int


@dataclass(frozen=True)
class Outcome:
    """What came of a search, in seconds.

    Args:
        seconds: of the whole call.
        baseline: of the evaluation of the float model.
        evaluations: of each trial.
        before: from the call to the first trial's evaluation, without the baseline's.
        between: from the end of each evaluation of a trial to the beginning of the next.
        after: from the end of the last evaluation to the model.
        metric: of the model that was found.
        size: bytes that its state holds.
        overhead: of each trial beyond the evaluation, where the library tells.
    """

    seconds: float
    baseline: float
    evaluations: list[float]
    before: float
    between: list[float]
    after: float
    metric: float
    size: int
    overhead: list[float] = field(default_factory=list)

    @property
    def outside(self) -> float:
        """Seconds that the library took beside the user's evaluation."""
        return self.before + sum(self.between) + self.after


Found = tuple[nn.Module, list[float]]  # the model, and of each trial what it took beyond the evaluation


def problem_of(network: Network, objective: str, trials: int) -> Problem:
    """Of a network: its first calibration images, with labels that nobody reads."""
    images = torch.cat(list(network.calibration))[:CALIBRATION]
    data = TensorDataset(images, torch.zeros(len(images), dtype=torch.long))
    return Problem(network.model, DataLoader(data, batch_size=CALIBRATION), TimedEvaluation(network), objective, trials)


def measured(search: Callable[[Problem], Found], problem: Problem) -> Outcome:
    """Search, and then judge what was found."""
    start = time.perf_counter()
    model, overhead = search(problem)
    end = time.perf_counter()
    (began, ended), *trials = problem.evaluate.times
    return Outcome(
        seconds=end - start,
        baseline=ended - began,
        evaluations=[stop - begin for begin, stop in trials],
        before=trials[0][0] - start - (ended - began),
        between=[after[0] - before[1] for before, after in pairwise(trials)],
        after=end - trials[-1][1],
        metric=judge(model, problem.evaluate.network).value,
        size=_bytes(model.state_dict()),
        overhead=overhead,
    )


def _bytes(state: Any) -> int:
    """Of all tensors in a state, in which packed weights may be tuples of tensors."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, tuple | list) else ()
    return sum(map(_bytes, parts))
