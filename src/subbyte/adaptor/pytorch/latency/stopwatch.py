"""Seconds of a call."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_ROUNDS = 51
_FEWEST = 5
_ROUND = 2e-4  # seconds that a round takes at least; no longer, so that other processes disturb few of them
_ENOUGH = 0.5  # seconds of all rounds

_REPEATABLE = 0.01  # share of the seconds: what a later measurement of the same call may differ by

Repeated = Callable[[int], Any]  # runs what is timed as often as it is told


def repeated(call: Callable[[], Any]) -> Repeated:
    """A call as often as it is told."""

    def repeat(times: int) -> None:
        for _ in range(times):
            call()

    return repeat


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    Args:
        seconds: least of several rounds.
        spread: standard error: how far the fastest quarter of the rounds reaches, and no less than one percent.
    """

    seconds: float
    spread: float


def timing_of(repeat: Repeated, device: torch.device) -> Timing:
    """Of one call: the least of several rounds, after a warm-up, as what else the machine does can only add to it.

    What PyTorch computes in one thread is timed by that thread's own clock, which stands still while others have the
    processor; else the time that passes counts.

    Args:
        repeat: what is timed.
        device: where it computes; what it leaves running there is waited for.
    """
    once = min(_round(repeat, 1, device) for _ in range(3))
    times = max(1, round(_ROUND / max(once, 1e-7)))
    rounds: list[float] = []
    while len(rounds) < _FEWEST or (len(rounds) < _ROUNDS and sum(rounds) * times < _ENOUGH):
        rounds.append(_round(repeat, times, device))
    least = min(once, *rounds)
    quarter = sorted(rounds)[len(rounds) // 4]
    return Timing(least, max(quarter - least, _REPEATABLE * least))


def _round(repeat: Repeated, times: int, device: torch.device) -> float:
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    _wait(device)
    began = clock()
    repeat(times)
    _wait(device)
    return (clock() - began) / times


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
