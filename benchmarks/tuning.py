"""Tuning a real network: what each strategy finds, in how many trials, and what is left of it on other data.

A search chooses the luckiest of many trials, so its own figures flatter. It sees one half of the test data; what it
chose is judged on the other half, by paired intervals, and both stand in the table. On images an evaluation ends as
soon as it is certain that too much is lost; one search looks at all of them, for comparison.
"""

import dataclasses
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from networks.metrics import Change
from torch import Tensor, nn

import networks
import subbyte
from report import Report, parser
from subbyte.tuning import EarlyStopping

STUDIES = Path(__file__).resolve().parents[1] / "build" / "tuning.db"
RECIPES = ("gptq", "bias_correction")  # which have no meaning for embeddings
WITH_RECIPES = f"sensitivity, {' and '.join(RECIPES)}"
RECOVERED = "sensitivity, recovery by default"
IN_FULL = "sensitivity, all images"
STRATEGIES: dict[str, dict[str, Any]] = {
    "sensitivity": {},
    RECOVERED: {"strategy": "sensitivity", "recover": "default"},
    IN_FULL: {"strategy": "sensitivity", "early_stopping": None},
    WITH_RECIPES: {"strategy": "sensitivity", "recover": [{name: {"unsupported": "skip"}} for name in RECIPES]},
    **{name: {} for name in ("mse", "mse_v2", "hawq_v2", "basic", "conservative", "tpe", "bayesian", "random")},
}
QUICK_STRATEGIES = ("sensitivity", "basic", "random")
MAX_LOSS = 0.01
TRIALS, QUICK_TRIALS = 40, 8
CONFIDENCE = 0.99
TIMES_SMALLER = 9.0
OVERHEAD_MS = 20.0
MINUTES = 10.0


@dataclass(frozen=True)
class Found:
    """What a strategy came to.

    Args:
        strategy: its label.
        result: of the search.
        before: seconds before the first trial and after the last: calibration, measurements, the final model.
        change: of the metric on the data that the search did not see, from fp32.
    """

    strategy: str
    result: subbyte.TuneResult
    before: float
    change: Change

    @property
    def size(self) -> float:
        return self.result.best.cost if self.result.criterion_met else float("inf")

    @property
    def seconds(self) -> float:
        return self.before + sum(trial.seconds for trial in self.result.trials)

    @property
    def overhead(self) -> list[float]:
        """Milliseconds of each trial beyond the evaluation, of those without recovery."""
        plain = [trial for trial in self.result.trials if not trial.recovered]
        return [1e3 * (trial.seconds - trial.evaluation) for trial in plain] or [0.0]

    def trials_to(self, size: float) -> int | None:
        """How many trials it took to a model as small."""
        found = [trial.number + 1 for trial in self.result.trials if trial.met and trial.cost <= size]
        return min(found, default=None)

    def share(self, samples: int) -> float:
        """Of all samples, how many evaluations looked at."""
        looked = [samples if trial.samples is None else trial.samples for trial in self.result.trials]
        return sum(looked) / (samples * len(looked))


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments)
    arguments.add_argument("--strategy", nargs="+", choices=list(STRATEGIES), help="some of them, printed only")
    arguments.add_argument("--again", action="store_true", help="try again what was tried before")
    options = arguments.parse_args()
    network = networks.load(options.network, options.data, quick=options.quick)
    in_part = bool(options.quick or options.strategy)
    report = Report(f"tuning_{network.name}", f"Tuning {network.name}", quick=in_part)
    seen, unseen = _halves(network)
    size = sum(x.nbytes for x in (*network.model.parameters(), *network.model.buffers()))
    trials = QUICK_TRIALS if options.quick else TRIALS
    report.text(
        f"{network.data[0].upper()}{network.data[1:]}. Metric: {network.metric.name}. The smallest model that loses at "
        f"most {MAX_LOSS:.0%} of fp32's metric, in at most {trials} trials; fp32 has {size:,} bytes."
    )
    if _yields_scores(network):
        report.text(
            f"But for '{IN_FULL}', an evaluation ends as soon as it is certain with a confidence of {CONFIDENCE:.0%} "
            "that the loss is too much. Looked at: the share of the images."
        )
    report.text(
        "The search sees one half of the test data; the change on the other half, which it did not see, is paired with "
        "fp32, with its 95 % interval. Overhead is what a trial takes beyond the evaluation: median, and the slowest. "
        "Trials to the best: after how many trials the model that was chosen in the end was found."
    )
    names = options.strategy or (QUICK_STRATEGIES if options.quick else list(STRATEGIES))
    if not _yields_scores(network):
        names = [name for name in names if name != IN_FULL]
    found = [_search(name, network, seen, unseen, trials, options) for name in names]
    report.table(
        f"At most {MAX_LOSS:.0%} worse than fp32", _COLUMNS, [_cells(each, size, _samples(seen)) for each in found]
    )
    _state_goals(report, found, size)
    report.save()


_COLUMNS = [
    "strategy", "bytes", "times smaller", "loss, half seen", "change, half unseen", "trials", "trials to the best",
    "looked at", "seconds", "overhead, ms",
]  # fmt: skip


def _halves(network: networks.Network) -> tuple[networks.Network, networks.Network]:
    """Every second batch of the test data each."""
    return dataclasses.replace(network, test=network.test[::2]), dataclasses.replace(network, test=network.test[1::2])


def _search(
    name: str,
    network: networks.Network,
    seen: networks.Network,
    unseen: networks.Network,
    trials: int,
    options: Namespace,
) -> Found:
    evaluate, stopping = _evaluation(seen)
    plain = {"strategy": name, "recover": [], "loss_fn": _likelihood(network.model), "early_stopping": stopping}
    asked = plain | STRATEGIES[name]
    study = f"{network.name}, {name}, {trials} trials" + (f", {time.time()}" if options.again else "")
    STUDIES.parent.mkdir(exist_ok=True)
    start = time.perf_counter()
    result = subbyte.tune(
        network.model, network.calibration, evaluate,
        max_loss=MAX_LOSS, higher_is_better=network.metric.higher_is_better, objective="size", max_trials=trials,
        storage=STUDIES, study=study, **asked,
    )  # fmt: skip
    before = time.perf_counter() - start - sum(trial.seconds for trial in result.trials)
    change = networks.judge(result.model, unseen).change_from(networks.judge(network.model, unseen))
    return Found(name, result, max(before, 0.0), change)


def _evaluation(network: networks.Network) -> tuple[Callable[[nn.Module], Any], EarlyStopping | None]:
    """From a model to its metric, or to the scores of its samples where the metric is their mean."""

    @torch.no_grad()
    def scores(model: nn.Module) -> Iterator[Tensor]:
        for inputs, targets in network.test:
            yield network.metric.of_batch(networks.call(model, inputs), targets)[:, 0]

    if _yields_scores(network):
        return scores, EarlyStopping(CONFIDENCE, lowest=0.0, highest=100.0)
    return lambda model: networks.judge(model, network).value, None


def _yields_scores(network: networks.Network) -> bool:
    return network.name in networks.IMAGE_NETWORKS


def _samples(network: networks.Network) -> int:
    return sum(len(targets) for _, targets in network.test)


def _likelihood(model: nn.Module) -> Any:
    """The loss for hawq_v2: that of the float model's own most likely labels, since calibration data has none."""

    def loss(net: nn.Module, batch: Any) -> Tensor:
        outputs = networks.call(net, batch)
        with torch.no_grad():
            labels = networks.call(model, batch).argmax(-1)
        return F.cross_entropy(outputs.flatten(0, -2), labels.flatten())

    return loss


def _cells(found: Found, size: int, samples: int) -> list[str]:
    best, (low, high) = found.result.best, found.change.interval
    met = "" if found.result.criterion_met else " (not met)"
    return [
        found.strategy,
        f"{best.cost:,.0f}{met}",
        f"{size / best.cost:.2f}",
        f"{best.loss:.2%}",
        f"{found.change.value:+.2f} [{low:+.2f}, {high:+.2f}]",
        str(len(found.result.trials)),
        str(best.number + 1),
        f"{found.share(samples):.0%}",
        f"{found.seconds:.0f}",
        f"{statistics.median(found.overhead):.1f}, {max(found.overhead):.1f}",
    ]


def _state_goals(report: Report, found: Sequence[Found], size: int) -> None:
    smallest = min(found, key=lambda each: each.size)
    report.goal(
        f"a model {TIMES_SMALLER:g} times smaller than fp32",
        f"{size / smallest.size:.2f} by {smallest.strategy}",
        met=size / smallest.size >= TIMES_SMALLER,
    )
    own = next((each for each in found if each.strategy == "sensitivity"), None)
    others = [each for each in found if not each.strategy.startswith("sensitivity")]
    if own is not None and others:
        other = min(others, key=lambda each: each.size)
        needed, took = own.trials_to(other.size), other.trials_to(other.size) or TRIALS
        report.goal(
            "sensitivity finds a model as small as the best of the other strategies' in a third of its trials",
            f"{other.strategy} {other.size:,.0f} bytes in {took} trials, sensitivity in "
            f"{'more than it had' if needed is None else needed} (its smallest: {own.size:,.0f})",
            met=needed is not None and 3 * needed <= took,
        )
    recovered = next((each for each in found if each.strategy == RECOVERED), None)
    if recovered is not None:
        minutes = recovered.seconds / 60
        report.goal(f"{RECOVERED}: at most {MINUTES:g} minutes", f"{minutes:.1f}", met=minutes <= MINUTES)
    worst = max(statistics.median(each.overhead) for each in found)
    report.goal(f"under {OVERHEAD_MS:g} ms a trial beyond the evaluation", f"{worst:.1f} ms", met=worst < OVERHEAD_MS)


if __name__ == "__main__":
    main()
