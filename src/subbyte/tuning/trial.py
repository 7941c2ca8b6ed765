"""One configuration that was tried."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from subbyte.spec import TuneConfig
from subbyte.tuning.candidate import Recovery
from subbyte.tuning.paired import Interval

_PLAIN = (
    "number",
    "loss",
    "cost",
    "met",
    "recovery",
    "seconds",
    "evaluation",
    "problem",
    "samples",
    "confirmed",
    "estimate",
)


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
        recovery: whether recovery methods ran on it, and in which form: `none`, `quick` or `full`.
        seconds: that the trial took, evaluation included.
        evaluation: seconds of these that the user's evaluation took.
        problem: why it failed, or empty.
        interval: the loss with its bounds on samples that took no part in the search; None without scores of samples.
        confirmed: whether these show, with the confidence that was asked for, that the loss is tolerable; None if that
            was not tested.
        estimate: the loss that is expected of a model that deviates so far from the float one; None where an interval
            says more.
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
    interval: Interval | None = field(default=None, kw_only=True)
    confirmed: bool | None = field(default=None, kw_only=True)
    estimate: float | None = field(default=None, kw_only=True)
    recovery: Recovery = "none"
    seconds: float = 0.0
    evaluation: float = 0.0
    problem: str = ""
    samples: int | None = None

    @property
    def failed(self) -> bool:
        return bool(self.problem)

    @property
    def recovered(self) -> bool:
        return self.recovery != "none"

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
        interval = None if self.interval is None else asdict(self.interval)
        return plain | {
            "interval": interval,
            "metrics": dict(self.metrics),
            "objectives": dict(self.objectives),
            "config": config,
        }


def best_of(trials: list[Trial]) -> Trial | None:
    """The cheapest that is good enough; without one, of those that exceed the budgets least, the one that loses least.

    None where all failed. Of equally cheap ones, one that was not recovered quickly is taken, then the more accurate,
    then the earlier. Where losses were tested in the end, those that passed are good enough.
    """
    usable = [trial for trial in trials if not trial.failed]
    are_tested = any(trial.confirmed is not None for trial in usable)
    met = [trial for trial in usable if trial.met and (trial.confirmed or not are_tested)]
    if met:
        return min(met, key=lambda trial: (trial.cost, trial.recovery == "quick", trial.loss, trial.number))
    return min(usable, key=lambda trial: (trial.excess, trial.loss, trial.cost, trial.number), default=None)
