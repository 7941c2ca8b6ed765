"""How much slower quantizing, saving and running get while one other process keeps a core busy.

The threads of one operation wait for each other. If another process holds a core, such a wait takes a time slice of the
operating system, however short the operation is.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch
from contenders import in_fresh_process
from torch import Tensor, nn

import subbyte
from report import Report, parser

SIDE, LAYERS = 1024, 102
QUICK_LAYERS = 4
CONFIGURATION = "w4a8:dynamic:g128"
ROUNDS, QUICK_ROUNDS = 5, 1
TOKENS = 10
MOST = 3.0

Result = TypeVar("Result")


def main() -> None:
    options = parser(__doc__).parse_args()
    layers = QUICK_LAYERS if options.quick else LAYERS
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    report = Report("beside_other_work", "Beside other work", quick=options.quick)
    report.text(
        f"{layers} Linear layers of {SIDE} x {SIDE} ({layers * SIDE * SIDE / 1e6:.0f} million weights), "
        f"`{CONFIGURATION}`. Each figure is the median of {rounds} fresh processes, quiet ones and ones beside a busy "
        f"process in turn. A token is one forward of a single row, the mean of {TOKENS}."
    )
    quiet, beside = [], []
    for _ in range(rounds):
        quiet.append(in_fresh_process(_seconds, layers))
        with _busy_process():
            beside.append(in_fresh_process(_seconds, layers))
    rows = []
    for step in quiet[0]:
        alone, shared = (statistics.median(each[step] for each in measured) for measured in (quiet, beside))
        rows.append([step, f"{alone:.3f}", f"{shared:.3f}", f"{shared / alone:.1f}"])
        if step in ("quantize", "save"):
            wanted = f"{step}: at most {MOST:g} times the quiet time beside a busy process"
            report.goal(wanted, f"{shared / alone:.1f} times", met=shared <= MOST * alone)
    report.table("Seconds", ["", "quiet", "beside a busy process", "ratio"], rows)
    report.save()


def _seconds(layers: int) -> dict[str, float]:
    """Return the seconds of each step, in a fresh process."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(layers)))
    row = torch.randn(1, SIDE)
    subbyte.quantize(nn.Sequential(nn.Linear(8, 8)), "w4")  # what is loaded once
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.safetensors"
        q_model = _timed(seconds, "quantize", lambda: subbyte.quantize(model, CONFIGURATION, row))
        _timed(seconds, "save", lambda: subbyte.save(q_model, path))
        _timed(seconds, "load", lambda: subbyte.load(path, model))
        on_kernels = _timed(seconds, "lay out for kernels", lambda: subbyte.use_kernels(q_model))
        seconds["a token, float"] = _seconds_of_a_token(model, row)
        seconds["a token, on kernels"] = _seconds_of_a_token(on_kernels, row)
    return seconds


def _timed(seconds: dict[str, float], step: str, function: Callable[[], Result]) -> Result:
    start = time.perf_counter()
    result = function()
    seconds[step] = time.perf_counter() - start
    return result


def _seconds_of_a_token(model: nn.Module, row: Tensor) -> float:
    model(row)
    start = time.perf_counter()
    for _ in range(TOKENS):
        model(row)
    return (time.perf_counter() - start) / TOKENS


@contextmanager
def _busy_process() -> Iterator[None]:
    process = get_context("spawn").Process(target=_compute_forever, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _compute_forever() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
