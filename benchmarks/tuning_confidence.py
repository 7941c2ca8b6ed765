"""What a tuned model loses on images that its search did not see, over many splits of the images.

Each split halves the images at random. A search of its own, with the scores of one half, chooses a model; the other
half tells what that loses. An evaluation gives the scores of all images, which are kept by configuration: a
configuration that several searches try is run once.
"""

import functools
import hashlib
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from torch import Tensor, nn

import networks
import subbyte
from report import Report, parser
from subbyte.adaptor import TunableModel
from subbyte.adaptor.pytorch.adaptor import PyTorchAdaptor
from subbyte.capability import load_capability
from subbyte.config import PostTrainingQuantConfig
from subbyte.spec import TuneConfig
from subbyte.tuning import Accuracy, Limits, Task, TuneResult, read_goal, search_best
from subbyte.tuning.paired import PairedLoss, paired_loss

CACHE = Path(__file__).resolve().parents[1] / "build" / "scores"
SPLITS, QUICK_SPLITS = 20, 2
TRIALS, QUICK_TRIALS = 15, 6
MAX_LOSS = 0.01
CONFIDENCES = (0.9,)
MOST_FAILURES = 2
EXCESS = 0.003
MOST_SIZE = 1.3


class Scores:
    """Whether each image is recognized, by configuration; kept in files.

    Args:
        network: with its test images.
        folder: of the files.
    """

    def __init__(self, network: networks.Network, folder: Path) -> None:
        self._network = network
        self._folder = folder / network.name
        self._folder.mkdir(parents=True, exist_ok=True)
        self.images = sum(len(labels) for _, labels in network.test)

    def of(self, model: nn.Module | TuneConfig) -> Tensor:
        """Return the scores of a model, fp64 [images], from its file if another search has run its configuration."""
        path = self._folder / f"{_digest(model)}.npy"
        if not path.exists():
            assert isinstance(model, nn.Module), "no search has run this configuration"
            fast = _on_kernels(model)
            right = torch.cat(
                [networks.call(fast, inputs).argmax(1) == labels for inputs, labels in self._network.test]
            )
            part = path.with_suffix(f".{os.getpid()}")
            with part.open("wb") as file:
                np.save(file, np.packbits(right.numpy()))
            part.rename(path)
        bits = np.unpackbits(np.load(path))[: self.images]
        return torch.from_numpy(bits.astype(np.float64))


def _on_kernels(model: nn.Module) -> nn.Module:
    """Return a model that gives the same bits sooner; the float model as it is."""
    if not hasattr(model, "subbyte_state"):
        return model
    converted = subbyte.convert(model)
    subbyte.use_kernels(converted)
    return converted


def _digest(model: nn.Module | TuneConfig) -> str:
    state: Any = getattr(model, "subbyte_state", None)
    config = model if isinstance(model, TuneConfig) else None if state is None else state.config
    if config is None:
        return "float"
    text = "; ".join(f"{name} ({kind}): {each}" for (name, kind), each in config.op.items())
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Way:
    """How a search judges its trials.

    Args:
        name: in the table.
        confidence: of a search with scores; None where the evaluation returns a number.
    """

    name: str
    confidence: float | None


WAYS = [Way("one number: estimated", None), *(Way(f"scores, confidence {each:g}", each) for each in CONFIDENCES)]


@dataclass(frozen=True)
class Outcome:
    """What a search chose, and what that loses on the half that it did not see.

    Args:
        result: of the search.
        size: bytes of the model.
        loss: on the unseen half.
        low: one-sided lower bound of that, with 90 % confidence.
    """

    result: TuneResult
    size: float
    loss: float
    low: float

    def __str__(self) -> str:
        met = "met" if self.result.criterion_met else "not met"
        trials = f"trial {self.result.best.number + 1} of {len(self.result.trials)}"
        return f"{self.size:,.0f} bytes, said to be {met}, {trials}; loses {self.loss:.2%} of the unseen half"


def main() -> None:
    arguments = parser(__doc__)
    networks.add_arguments(arguments, networks.IMAGE_NETWORKS)
    arguments.add_argument("--cache", type=Path, default=CACHE, help="folder of scores (%(default)s)")
    arguments.add_argument("--ways", nargs="+", type=int, help="some rows of the table by number, printed only")
    options = arguments.parse_args()
    network = networks.load(options.network, options.data, quick=options.quick)
    scores = Scores(network, options.cache / "quick" if options.quick else options.cache)
    ways = WAYS if options.ways is None else [WAYS[each] for each in options.ways]
    report = Report(
        f"tuning_confidence_{network.name}", f"What tuned models lose on unseen images: {network.name}",
        quick=bool(options.quick or options.ways),
    )  # fmt: skip
    model, of_float = _tunable(network), scores.of(network.model)
    splits = QUICK_SPLITS if options.quick else SPLITS
    trials = QUICK_TRIALS if options.quick else TRIALS
    found = {}
    for way in ways:
        found[way] = []
        for seed in range(splits):
            found[way].append(outcome := _outcome(network, model, scores, way, seed, trials))
            print(f"{way.name}, split {seed}: {outcome}", flush=True)
    smallest = _smallest(scores, of_float, (each for outcomes in found.values() for each in outcomes))
    _write(report, network, found, smallest, splits, trials)


def _tunable(network: networks.Network) -> TunableModel:
    """Return a model for all searches, which measures what each op's error does to the outputs once."""
    adaptor = PyTorchAdaptor(load_capability("pytorch_cpu"))
    made: Any = adaptor.tunable(network.model, PostTrainingQuantConfig(), list(network.calibration))
    made.output_error = functools.cache(made.output_error)
    made.quantize = lambda config: nn.Identity()  # nobody runs the model that is chosen: its scores are kept
    return made


def _outcome(
    network: networks.Network, model: TunableModel, scores: Scores, way: Way, seed: int, trials: int
) -> Outcome:
    order = torch.randperm(scores.images, generator=torch.Generator().manual_seed(1000 + seed))
    seen, unseen = order[: scores.images // 2], order[scores.images // 2 :]

    @torch.no_grad()
    def evaluate(tried: nn.Module) -> Any:
        of_all = scores.of(tried)
        return of_all[seen] if way.confidence is not None else float(of_all[seen].mean())

    task = Task(
        evaluate, Accuracy(MAX_LOSS, confidence=way.confidence), read_goal("size"), "sensitivity", seed=seed,
        storage=optuna.storages.InMemoryStorage(),
    )  # fmt: skip
    result = search_best(network.model, model, task, Limits(trials))
    loss = _loss(scores, scores.of(network.model), result.best.config, unseen)
    return Outcome(result, result.best.objectives["size"], loss.value, loss.interval(0.9).low)


def _loss(scores: Scores, of_float: Tensor, config: TuneConfig, images: Tensor | None = None) -> PairedLoss:
    both = scores.of(config), of_float
    found, reference = both if images is None else (each[images] for each in both)
    return paired_loss(found, reference, relative=True, higher_is_better=True)


def _smallest(scores: Scores, of_float: Tensor, outcomes: Iterable[Outcome]) -> float:
    """Return the bytes of the smallest of all models tried that keeps the target on all images."""
    every = [(trial.config, trial.objectives["size"]) for each in outcomes for trial in each.result.trials]
    return min(size for config, size in every if _loss(scores, of_float, config).value <= MAX_LOSS)


_COLUMNS = [
    "evaluation", "bytes", "of the smallest", "said to be met", "loss, half unseen", "largest", "excess",
    "lower bound above", "trials",
]  # fmt: skip


def _cells(way: Way, outcomes: Sequence[Outcome], smallest: float) -> list[str]:
    sizes, losses = [each.size for each in outcomes], [each.loss for each in outcomes]
    return [
        way.name,
        f"{statistics.fmean(sizes):,.0f} ({min(sizes):,.0f} to {max(sizes):,.0f})",
        f"{statistics.fmean(sizes) / smallest:.2f}",
        f"{sum(each.result.criterion_met for each in outcomes)} of {len(outcomes)}",
        f"{statistics.fmean(losses):.2%}",
        f"{max(losses):.2%}",
        f"{_excess(outcomes):.2%}",
        f"{_failures(outcomes)} of {len(outcomes)}",
        f"{statistics.fmean(len(each.result.trials) for each in outcomes):.1f}",
    ]


def _excess(outcomes: Sequence[Outcome]) -> float:
    return statistics.fmean(max(each.loss - MAX_LOSS, 0.0) for each in outcomes)


def _failures(outcomes: Sequence[Outcome]) -> int:
    return sum(each.low > MAX_LOSS for each in outcomes)


def _write(
    report: Report, network: networks.Network, found: Mapping[Way, Sequence[Outcome]], smallest: float, splits: int,
    trials: int,
) -> None:  # fmt: skip
    metric = network.metric.name.partition(",")[0]
    report.text(
        f"{network.data[0].upper()}{network.data[1:]}. In each of {splits} random splits of the test images a search "
        f"of its own (`sensitivity`, at most {trials} trials) sees one half and looks for the smallest model that "
        f"loses at most {MAX_LOSS:.0%} of fp32's {metric}. The other half tells what the model that it chose loses. "
        f"The smallest of all models tried that loses at most {MAX_LOSS:.0%} on all images has {smallest:,.0f} bytes."
    )
    report.text(
        "Excess: how far the loss on the unseen half is above the target, 0 where it is not, on average. Lower bound "
        "above: splits in which the one-sided 90 % lower bound of that loss, paired with fp32, is above the target."
    )
    report.table("Size against confidence", _COLUMNS, [_cells(way, each, smallest) for way, each in found.items()])
    for way, outcomes in found.items():
        mean, size = statistics.fmean(each.loss for each in outcomes), statistics.fmean(each.size for each in outcomes)
        if way.confidence == 0.9:
            failures = _failures(outcomes)
            report.goal(f"{way.name}: mean loss at most {MAX_LOSS:.0%}", f"{mean:.2%}", met=mean <= MAX_LOSS)
            report.goal(
                f"{way.name}: lower bound above {MAX_LOSS:.0%} in at most {MOST_FAILURES} of {SPLITS} splits",
                f"{failures} of {len(outcomes)}", met=failures <= MOST_FAILURES,
            )  # fmt: skip
            report.goal(
                f"{way.name}: at most {MOST_SIZE - 1:.0%} above the smallest model", f"{size / smallest - 1:+.0%}",
                met=size <= MOST_SIZE * smallest,
            )  # fmt: skip
        if way.confidence is None:
            excess = _excess(outcomes)
            report.goal(f"{way.name}: mean excess below {EXCESS:.1%}", f"{excess:.2%}", met=excess < EXCESS)
    report.save()


if __name__ == "__main__":
    main()
