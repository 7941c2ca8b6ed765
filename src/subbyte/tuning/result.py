"""What tuning found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from subbyte.errors import ModelError
from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.measured import Measured
from subbyte.tuning.pareto import pareto
from subbyte.tuning.trial import Trial


@dataclass(frozen=True)
class TuneResult:
    """A tuned model, and how it was found.

    Args:
        model: converted, of the best trial's configuration.
        criterion_met: whether its loss of accuracy is tolerable, and every budget kept.
        baseline: the float model's metric, or its metrics by name.
        best: the trial that it comes from.
        trials: all of them, in the order of the study.
        errors: how far the outputs are from float with one op alone in one alternative, where the strategy measured it:
            the squared difference over the squared float output.
        study: the name under which the storage keeps them.
        measured: by objective, of those that are predicted op by op (latency): prediction and measurement of the
            `float` and of the `best` model.
    """

    model: Any
    criterion_met: bool
    baseline: float | dict[str, float]
    best: Trial
    trials: Sequence[Trial]
    errors: Mapping[OpKey, Mapping[OpConfig, float]]
    study: str
    measured: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)

    def pareto(self, objective: str) -> list[Trial]:
        """The trials that no other one beats in both loss and an objective, the cheapest first.

        Raises:
            TuningError: the objective is unknown, or the search did not look at it.
        """
        return pareto(self.trials, objective)


_RESULTS: "WeakKeyDictionary[nn.Module, TuneResult]" = WeakKeyDictionary()


def remember(result: TuneResult) -> None:
    """Let `tuning_result` find it."""
    _RESULTS[result.model] = result


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
    return result
