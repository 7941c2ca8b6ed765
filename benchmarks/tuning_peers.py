"""The cost of a search beside that of Intel Neural Compressor 2: same network, data, evaluation, number of trials.

Each search runs in a process of its own, the libraries in turn. Neural Compressor 2.6 needs old packages: it may have a
Python of its own, as `benchmarks/README.md` says.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peers_tuning.problem import CALIBRATION, MAX_LOSS, Outcome

import networks
from report import Report, parser

HERE = Path(__file__).resolve().parent
RUNS, QUICK_RUNS = 3, 1
TRIALS, QUICK_TRIALS = 20, 4
TIMES_LESS = 5.0
OVERHEAD_MS = 20.0


@dataclass(frozen=True)
class Search:
    """One library's.

    Args:
        library: as it is shown.
        module: of `peers_tuning` that calls it.
        call: as it is shown.
        strategy: by name.
        objective: as Neural Compressor calls it.
        again: it finds the latencies that an earlier search measured.
    """

    library: str
    module: str
    call: str
    strategy: str
    objective: str
    again: bool = False

    @property
    def label(self) -> str:
        return f"{self.library}: {self.call}, {self.what}"

    @property
    def what(self) -> str:
        return f"{self.strategy}, {self.objective}{' (latencies kept)' if self.again else ''}"


PEER = Search("Neural Compressor", "of_neural_compressor", "fit", "basic", "performance")
OWN = [
    Search("Subbyte", "of_subbyte", "fit", "basic", "performance"),
    Search("Subbyte", "of_subbyte", "fit", "basic", "performance", again=True),
    Search("Subbyte", "of_subbyte", "fit", "basic", "modelsize"),
    Search("Subbyte", "of_subbyte", "tune", "sensitivity", "modelsize"),
]


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments, networks.IMAGE_NETWORKS)
    arguments.add_argument(
        "--peer-python", type=Path, default=Path(sys.executable), help="that has Neural Compressor 2"
    )
    options = arguments.parse_args()
    network = networks.load(options.network, options.data, quick=True)
    version = _peer_version(options.peer_python)
    runs, trials = (QUICK_RUNS, QUICK_TRIALS) if options.quick else (RUNS, TRIALS)
    in_part = options.quick or version is None
    report = Report("tuning_peers", "Tuning beside Intel Neural Compressor", quick=in_part)
    judged = sum(len(targets) for _, targets in network.test)
    peer = f"Neural Compressor {version}" if version else "Neural Compressor 2 NOT INSTALLED: see benchmarks/README.md"
    report.text(
        f"{network.name}: {CALIBRATION} images to calibrate, {judged} to evaluate on; at most {MAX_LOSS:.0%} worse "
        f"than fp32. {trials} trials in each search: with a long timeout both libraries go on when a model is good "
        f"enough. Each search runs in a fresh process, {runs} times, all in turn; figures are medians, with the least "
        f"and the most. {peer}."
    )
    report.text(
        "Theirs chooses between int8 and fp32 and evaluates on torch's int8 kernels; ours among 2 to 8 bits and "
        "fp32 and evaluates the prepared model, which is exact and slower. Its `performance` is how long an evaluation "
        "took; ours is the latency of each op in each precision, measured in the first search on a machine and kept. "
        "Its `modelsize` needs TensorFlow and is left out; ours is compared with its `performance`."
    )
    searches = [*([PEER] if version else []), *OWN]
    outcomes: dict[Search, list[Outcome]] = {search: [] for search in searches}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):
            for search in searches:
                outcomes[search].append(_run(search, trials, options, Path(folder) / "latency.json"))
    report.table("Seconds of a search", _TIMES, [_times(*item) for item in outcomes.items()])
    report.table("What it found, on the images that it saw", _FOUND, [_found(*item) for item in outcomes.items()])
    _state_goals(report, outcomes)
    report.save()


def _peer_version(python: Path) -> str | None:
    """Of the Neural Compressor that a Python has; None where it has none of version 2."""
    asked = "from importlib.metadata import version; print(version('neural-compressor'))"
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=False)
    version = done.stdout.strip()
    return version if version.startswith("2.") else None


def _run(search: Search, trials: int, options: Namespace, latencies: Path) -> Outcome:
    if not search.again:
        latencies.unlink(missing_ok=True)
    python = options.peer_python if search == PEER else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome.json"
        command = [
            python, "-W", "ignore", "-m", "peers_tuning", search.module, search.strategy, search.objective,
            "--trials", trials, "--outcome", outcome, "--network", options.network, "--data", options.data.resolve(),
        ]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": str(HERE),
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            "SUBBYTE_LATENCY_FILE": str(latencies),
        }
        done = subprocess.run(
            [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{search.label} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return Outcome(**json.loads(outcome.read_text()))


_TIMES = [
    "search", "trials", "whole", "evaluation", "outside evaluation", "before the first trial", "between two trials, ms",
    "after the last",
]  # fmt: skip


def _times(search: Search, outcomes: Sequence[Outcome]) -> list[str]:
    gaps = [1e3 * gap for outcome in outcomes for gap in outcome.between]
    return [
        search.label,
        _spread(outcomes, lambda outcome: len(outcome.evaluations), 0),
        _spread(outcomes, lambda outcome: outcome.seconds),
        _spread(outcomes, lambda outcome: sum(outcome.evaluations) + outcome.baseline),
        _spread(outcomes, lambda outcome: outcome.outside, 2),
        _spread(outcomes, lambda outcome: outcome.before, 2),
        f"{statistics.median(gaps):.0f} ({min(gaps):.0f}..{max(gaps):.0f})",
        _spread(outcomes, lambda outcome: outcome.after, 2),
    ]


_FOUND = ["search", "top-1, %", "bytes", "evaluation of a trial, ms"]


def _found(search: Search, outcomes: Sequence[Outcome]) -> list[str]:
    evaluations = [1e3 * seconds for outcome in outcomes for seconds in outcome.evaluations]
    return [
        search.label,
        _spread(outcomes, lambda outcome: outcome.metric),
        _spread(outcomes, lambda outcome: outcome.size, 0),
        f"{statistics.median(evaluations):.0f} ({min(evaluations):.0f}..{max(evaluations):.0f})",
    ]


def _spread(outcomes: Sequence[Outcome], figure: Callable[[Outcome], float], digits: int = 1) -> str:
    """The median, with the least and the most where they differ."""
    shown = [f"{value:,.{digits}f}" for value in sorted(map(figure, outcomes))]
    middle = f"{statistics.median(map(figure, outcomes)):,.{digits}f}"
    return middle if shown[0] == shown[-1] else f"{middle} ({shown[0]}..{shown[-1]})"


def _state_goals(report: Report, outcomes: dict[Search, list[Outcome]]) -> None:
    for own in OWN if PEER in outcomes else ():
        theirs, ours = (_outside_a_trial(outcomes[search]) for search in (PEER, own))
        report.goal(
            f"{TIMES_LESS:g} times less time outside the evaluation, {own.what}",
            f"{theirs / ours:.1f} times ({theirs * 1e3:,.0f} ms and {ours * 1e3:,.0f} ms a trial)",
            met=theirs >= TIMES_LESS * ours,
        )
    for own in OWN:
        overhead = [1e3 * seconds for outcome in outcomes[own] for seconds in outcome.overhead]
        median = statistics.median(overhead)
        report.goal(
            f"under {OVERHEAD_MS:g} ms a trial beyond the evaluation, {own.what}",
            f"{median:.1f} ms, the slowest {max(overhead):.1f}",
            met=median < OVERHEAD_MS,
        )


def _outside_a_trial(outcomes: Sequence[Outcome]) -> float:
    """Seconds, all of a search shared among its trials; the median of the runs."""
    return statistics.median(outcome.outside / len(outcome.evaluations) for outcome in outcomes)


if __name__ == "__main__":
    main()
