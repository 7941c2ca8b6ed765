"""Seconds of a call."""

import time
from collections.abc import Callable
from typing import Any

import torch

_ROUNDS = 51
_FEWEST = 5
_ROUND = 2e-4  # seconds that a round takes at least; no longer, so that other processes disturb few of them
_ENOUGH = 0.5  # seconds of all rounds

Repeated = Callable[[int], Any]  # runs what is timed as often as it is told


def repeated(call: Callable[[], Any]) -> Repeated:
    """A call as often as it is told."""

    def repeat(times: int) -> None:
        for _ in range(times):
            call()

    return repeat


def seconds_of(repeat: Repeated, device: torch.device) -> float:
    """Of one call: the least of several rounds, after a warm-up, as what else the machine does can only add to it.

    What PyTorch computes in one thread is timed by that thread's own clock, which stands still while others have the
    processor; else the time that passes counts.

    Args:
        repeat: what is timed.
        device: where it computes; what it leaves running there is waited for.
    """
    once = min(_round(repeat, 1, device) for _ in range(3))
    times = max(1, round(_ROUND / max(once, 1e-7)))
    least, rounds, spent = once, 0, 0.0
    while rounds < _FEWEST or (rounds < _ROUNDS and spent < _ENOUGH):
        seconds = _round(repeat, times, device)
        least, rounds, spent = min(least, seconds), rounds + 1, spent + seconds * times
    return least


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
