"""Measurements that take minutes each, every one in a process of its own, kept so that an interrupted run goes on."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import resident
import torch
from rich.progress import Progress
from torch import nn

from networks import Judged, Metric

KEPT = Path(__file__).resolve().parents[1] / "build" / "jobs"


@dataclass(frozen=True)
class Job:
    """One network quantized in one way.

    Args:
        network: by name.
        precision: by its name in the plan.
        method: by its label in the plan.
        seed: of the calibration samples and of the method.
        quick: few samples and few steps.
    """

    network: str
    precision: str
    method: str
    seed: int
    quick: bool = False

    def __str__(self) -> str:
        return f"{self.network} {self.precision}, {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Args:
        samples: what the model gave on the test data, as in `Judged`; empty where there is no model.
        seconds: of processor time that making it took, by all threads; unlike time on the clock, it is hardly more on a
            machine that does other work meanwhile.
        peak: by how many bytes resident memory grew at most meanwhile.
        problem: why there is no model.
        size: of the model, in bytes, where that is told.
    """

    samples: list[list[float]]
    seconds: float = 0.0
    peak: int = 0
    problem: str = ""
    size: int = 0

    def judged(self, metric: Metric) -> Judged:
        return Judged(metric, torch.tensor(self.samples, dtype=torch.float64))


def measured(make: Callable[[], nn.Module], judge: Callable[[nn.Module], Judged]) -> Outcome:
    """Make a model, and then judge it."""
    resident.forget_peak()
    before, start = resident.resident(), time.process_time()
    model = make()
    seconds, peak = time.process_time() - start, resident.peak() - before
    return Outcome(judge(model).samples.tolist(), seconds, peak)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a script of jobs takes."""
    parser.add_argument("--job", help=argparse.SUPPRESS)  # run it, as a child of this script,
    parser.add_argument("--outcome", type=Path, help=argparse.SUPPRESS)  # and write the outcome here
    parser.add_argument("--again", action="store_true", help="measure what was measured before: do so after a change")
    parser.add_argument("--at-once", type=int, default=1, help="measurements at a time, sharing the cores (1)")


def run_child(options: argparse.Namespace, run: Callable[[Job], Outcome]) -> None:
    """Run the job that the parent asks for, and leave it the outcome."""
    outcome = run(Job(**json.loads(options.job)))
    options.outcome.write_text(json.dumps(asdict(outcome)))


def threads(options: argparse.Namespace) -> int:
    """Of one measurement."""
    return max(1, torch.get_num_threads() // options.at_once)


def how(options: argparse.Namespace) -> str:
    """What the report tells of how it was measured."""
    at_once = "one at a time" if options.at_once == 1 else f"{options.at_once} at once"
    return f"Measured {at_once}, each on {threads(options)} thread{'s' * (threads(options) > 1)}."


def run_all(jobs: Sequence[Job], arguments: Sequence[Any], options: argparse.Namespace) -> dict[Job, Outcome]:
    """Run this script once for each job.

    Args:
        jobs: what to run.
        arguments: further ones for the script.
        options: what `add_arguments` added.
    """
    with Progress(transient=True) as progress, ThreadPoolExecutor(options.at_once) as pool:
        task = progress.add_task("", total=len(jobs))

        def run(job: Job) -> Outcome:
            progress.update(task, description=str(job))
            outcome = _outcome(job, arguments, options)
            progress.advance(task)
            return outcome

        return dict(zip(jobs, pool.map(run, jobs), strict=True))


def _outcome(job: Job, arguments: Sequence[Any], options: argparse.Namespace) -> Outcome:
    """As kept, or by running the job; one that failed is tried anew by the next run."""
    script, asked = Path(sys.argv[0]), json.dumps(asdict(job))
    kept = KEPT / script.stem / f"{hashlib.sha256(f'{asked} {threads(options)}'.encode()).hexdigest()[:16]}.json"
    if options.again or not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(".part")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads(options))}
        command = [sys.executable, script, "--job", asked, "--outcome", unfinished, *arguments]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            return Outcome([], problem=_complaint(done))
        unfinished.replace(kept)
    return Outcome(**json.loads(kept.read_text()))


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The first line of the error that ended a process."""
    traceback = done.stderr.rpartition("Traceback (most recent call last):\n")[2]
    raised = [line for line in traceback.splitlines() if line[:1].isalpha()]
    return raised[0] if raised else f"ended with {done.returncode}"
