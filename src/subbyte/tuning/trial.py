"""One configuration that was tried."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subbyte.spec import TuneConfig

_PLAIN = ("number", "loss", "cost", "met", "recovered", "seconds", "evaluation", "problem", "samples")


@dataclass(frozen=True)
class Trial:
    """A configuration and what came of it.

    Args:
        number: counted from 0, in the order in which the search came to them: what only the study knew comes last.
        config: what every op got.
        metrics: of the model, by name; empty where the trial failed.
        loss: how much worse than the float model, as the criterion counts it; infinite where the trial failed.
        objectives: by name.
        cost: what the search makes small.
        met: whether the loss is tolerable and every budget kept.
        excess: by what share of itself each budget is exceeded, added up.
        recovered: whether recovery methods ran on it.
        seconds: that the trial took, evaluation included.
        evaluation: seconds of these that the user's evaluation took.
        problem: why it failed, or empty.
        samples: that the evaluation looked at, where it was certain before the last of them that the loss is too much;
            metric and loss are then estimates. None where it looked at all, as it does of every model that is met.
    """

    number: int
    config: TuneConfig
    metrics: Mapping[str, float]
    loss: float
    objectives: Mapping[str, float]
    cost: float
    met: bool
    excess: float = field(default=0.0, kw_only=True)
    recovered: bool = False
    seconds: float = 0.0
    evaluation: float = 0.0
    problem: str = ""
    samples: int | None = None

    @property
    def failed(self) -> bool:
        return bool(self.problem)

    @property
    def metric(self) -> float | dict[str, float] | None:
        """The number that the evaluation returned, or the numbers by name; None where the trial failed."""
        if not self.metrics:
            return None
        return next(iter(self.metrics.values())) if set(self.metrics) == {"metric"} else dict(self.metrics)

    @property
    def size(self) -> int | None:
        """Bytes of the converted model, where that was looked at."""
        return int(self.objectives["size"]) if "size" in self.objectives else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        config = {f"{name} ({kind})": str(each) for (name, kind), each in self.config.op.items()}
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {"metrics": dict(self.metrics), "objectives": dict(self.objectives), "config": config}


def best_of(trials: list[Trial]) -> Trial | None:
    """The cheapest that is good enough; without one, of those that exceed the budgets least, the one that loses least.

    None where all failed. Of equally cheap ones the more accurate is taken, then the earlier.
    """
    usable = [trial for trial in trials if not trial.failed]
    met = [trial for trial in usable if trial.met]
    if met:
        return min(met, key=lambda trial: (trial.cost, trial.loss, trial.number))
    return min(usable, key=lambda trial: (trial.excess, trial.loss, trial.cost, trial.number), default=None)
