"""What tuning found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from subbyte.errors import ConfigError, ModelError
from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.accuracy import METRIC, Accuracy
from subbyte.tuning.ladder import LeftOut
from subbyte.tuning.measured import Measured
from subbyte.tuning.objective import Goal
from subbyte.tuning.paired import Interval
from subbyte.tuning.pareto import pareto
from subbyte.tuning.run import Reason
from subbyte.tuning.trial import Trial


@dataclass(frozen=True)
class Wanted:
    """What a search was asked for.

    Args:
        strategy: by name.
        accuracy: what may be lost.
        goal: what was to be made small.
        max_trials: at most.
        of_float: what the widest configuration costs, by objective.
        alternatives: that each op may have, the first without tuning.
    """

    strategy: str
    accuracy: Accuracy
    goal: Goal
    max_trials: int
    of_float: Mapping[str, float]
    alternatives: Mapping[OpKey, Sequence[OpConfig]]


@dataclass(frozen=True)
class TuneResult:
    """A tuned model, and how it was found.

    Args:
        model: converted, of the best trial's configuration.
        criterion_met: whether its loss of accuracy is tolerable, and every budget kept.
        baseline: the float model's metric, or its metrics by name.
        best: the trial that it comes from; where every trial failed the first, and the model is the widest.
        trials: all of them, by their numbers.
        errors: how far the outputs are from float with one op alone in one alternative, where the strategy measured it:
            one minus the cosine between a sample's output and float's, of `mse` the squared difference over the squared
            float output.
        study: the name under which the storage keeps them.
        wanted: what was asked for.
        part_errors: as `errors`, with the weight of an op alone quantized, and with its inputs alone.
        perturbations: mean trace of the loss's Hessian times squared error, of the weight of an op alone quantized,
            where the strategy went by that.
        seconds: that this search took; trials that an earlier run made are not in it.
        stopped_because: `strategy` (it had nothing more to propose), `max_trials`, `timeout`, or `good_enough` (a trial
            was, and no other was wanted).
        left_out: alternatives of each op that the strategy did not look at because they save nothing, and beside which.
        measured: by objective, of those that are predicted op by op (latency): prediction and measurement of the
            `float` and of the `best` model.
        recovery: the recovery methods that trials could have, or why there were none.
    """

    model: Any
    criterion_met: bool
    baseline: float | dict[str, float]
    best: Trial
    trials: Sequence[Trial]
    errors: Mapping[OpKey, Mapping[OpConfig, float]]
    study: str
    wanted: Wanted
    part_errors: Mapping[OpKey, Mapping[OpConfig, float]] = field(default_factory=dict)
    perturbations: Mapping[OpKey, Mapping[OpConfig, float]] = field(default_factory=dict, kw_only=True)
    seconds: float = 0.0
    measured: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    recovery: str = field(default="none", kw_only=True)
    stopped_because: Reason = field(default="strategy", kw_only=True)
    left_out: Mapping[OpKey, Mapping[OpConfig, LeftOut]] = field(default_factory=dict, kw_only=True)

    @property
    def loss(self) -> float:
        """Loss of the best trial: on samples that took no part in the search, else an estimate; see `interval`."""
        if self.best.interval is not None:
            return self.best.interval.loss
        return self.best.loss if self.best.estimate is None else self.best.estimate

    @property
    def interval(self) -> Interval | None:
        """Return the bounds of the loss, each with the requested confidence or more.

        None if the loss is an estimate, or if no sample tested the best trial, as after a search without any success.
        """
        return self.best.interval

    @property
    def untried(self) -> dict[OpKey, list[OpConfig]]:
        """Alternatives of each op that no trial had, without those that were left out because they save nothing."""
        tried = {(key, config) for trial in self.trials for key, config in trial.config.op.items()}
        found = {
            key: [each for each in every if (key, each) not in tried and each not in self.left_out.get(key, {})]
            for key, every in self.wanted.alternatives.items()
        }
        return {key: every for key, every in found.items() if every}

    @property
    def baseline_metrics(self) -> dict[str, float]:
        """The float model's metrics by name."""
        return dict(self.baseline) if isinstance(self.baseline, Mapping) else {METRIC: self.baseline}

    def report(self, path: str | Path) -> None:
        """Write it as `.html` (a page without network), `.json` (everything) or `.csv` (a line for each trial).

        Raises:
            ConfigError: the name ends otherwise, or the file cannot be written.
        """
        path = Path(path)
        check_report_path(path)
        try:
            path.write_text(_FORMATS[path.suffix](self), encoding="utf-8", newline="")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error

    def pareto(self, objective: str) -> list[Trial]:
        """The trials that no other one beats in both loss and an objective, the cheapest first.

        Raises:
            TuningError: the objective is unknown, or the search did not look at it.
        """
        return pareto(self.trials, objective)


# What writes reports stands above tuning, and makes itself known here.
_FORMATS: dict[str, Callable[[TuneResult], str]] = {}


def register_report(ending: str, write: Callable[[TuneResult], str]) -> None:
    """Make a form of report known.

    Args:
        ending: of files, with the dot.
        write: gives the text of the file.

    Raises:
        ConfigError: the ending is taken.
    """
    if ending in _FORMATS:
        raise ConfigError(f"reports that end in {ending} are taken; choose another ending")
    _FORMATS[ending] = write


def check_report_path(path: Path) -> None:
    """Refuse a path that `TuneResult.report` would refuse.

    Raises:
        ConfigError: the name ends in no registered way, or there is no such folder.
    """
    if path.suffix not in _FORMATS:
        raise ConfigError(f"{path}: a tuning report is saved as {', '.join(_FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file")


_RESULTS: "WeakKeyDictionary[nn.Module, TuneResult]" = WeakKeyDictionary()


def remember(result: TuneResult) -> None:
    """Let `tuning_result` find it."""
    _RESULTS[result.model] = replace(result, model=None)  # else it would keep the model, and thereby itself, alive


def tuning_result(model: nn.Module) -> TuneResult:
    """What tuning found, of the model that it gave.

    Raises:
        ModelError: no search of this process gave this model.
    """
    result = _RESULTS.get(model)
    if result is None:
        raise ModelError(
            "no search of this process gave this model: tuning_result is of what subbyte.tune or quantization.fit "
            "gave, not of a copy of it or of a checkpoint; a study's file keeps all trials"
        )
    return replace(result, model=model)
