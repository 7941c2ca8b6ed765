"""What tuning makes small."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from subbyte.adaptor import TunableModel
from subbyte.errors import TuningError, nearest
from subbyte.spec import OpConfig, OpKey, TuneConfig

_ALIASES = {"modelsize": "size", "performance": "latency"}  # Intel Neural Compressor's names


class Objective(ABC):
    """A figure of a configuration, the smaller the better.

    Attributes:
        name: as it is asked for.
        unit: of its values.
    """

    name: str
    unit: str

    @abstractmethod
    def of(self, model: TunableModel, config: TuneConfig) -> float:
        """What the model would cost in this configuration."""

    def spread(self, model: TunableModel, key: OpKey, config: OpConfig) -> float:
        """Return the standard error of what one op adds to `of`, where that is measured; 0 where it is exact.

        Args:
            model: that trials run on.
            key, config: of the op.
        """
        return 0.0

    def measured(self, model: TunableModel, whole: Any) -> float | None:
        """What a whole model costs, float or converted, where `of` predicts that; None where `of` is exact.

        Args:
            model: that trials run on.
            whole: that is measured.
        """
        return None


_OBJECTIVES: dict[str, Objective] = {}


def register_objective(objective: Objective) -> Objective:
    """Make an objective known by its name.

    Raises:
        TuningError: the name is taken by another one.
    """
    if _OBJECTIVES.get(objective.name, objective) != objective:
        raise TuningError(f"objective {objective.name!r} is taken; choose another name")
    _OBJECTIVES[objective.name] = objective
    return objective


def objective_of(name: str) -> Objective:
    """An objective by name.

    Raises:
        TuningError: there is none.
    """
    found = _OBJECTIVES.get(_ALIASES.get(name, name))
    if found is None:
        known = [*_OBJECTIVES, *_ALIASES]
        raise TuningError(f"objective {name!r} is unknown{nearest(name, known)} (known: {', '.join(known)})")
    return found


@dataclass(frozen=True)
class _Size(Objective):
    name: str = "size"
    unit: str = "bytes"

    def of(self, model: TunableModel, config: TuneConfig) -> float:
        return model.size(config)


@dataclass(frozen=True)
class _Bops(Objective):
    name: str = "bops"
    unit: str = "bit operations"

    def of(self, model: TunableModel, config: TuneConfig) -> float:
        return model.bops(config)


@dataclass(frozen=True)
class Latency(Objective):
    """Seconds of one forward on this machine, with the kernels: what its ops take one by one, added up.

    Args:
        name: as it is asked for.
        samples: in a forward. One is what a user waits for; many, what a server gets through.
    """

    name: str = "latency"
    samples: int = 1
    unit: str = "seconds"

    def of(self, model: TunableModel, config: TuneConfig) -> float:
        return model.latency(config, self.samples)

    def spread(self, model: TunableModel, key: OpKey, config: OpConfig) -> float:
        return model.latency_spread(key, config, self.samples)

    def measured(self, model: TunableModel, whole: Any) -> float:
        return model.measured_latency(whole, self.samples)


register_objective(_Size())
register_objective(_Bops())
register_objective(Latency())


@dataclass(frozen=True)
class Goal:
    """Objectives with weights, and budgets that hold whatever the weights.

    A weighted sum is of shares of what the float model costs, so that bytes and seconds can be added.

    Args:
        weights: by the objective's name.
        budgets: by the objective's name, what it may be at most.
    """

    weights: Mapping[str, float]
    budgets: Mapping[str, float]

    @property
    def names(self) -> list[str]:
        """Of all objectives that are asked for."""
        return list(dict.fromkeys([*self.weights, *self.budgets]))

    @property
    def looked_at(self) -> list[str]:
        """The same, and those that every trial keeps because they cost nothing."""
        return list(dict.fromkeys([*self.names, "size", "bops"]))

    def cost(self, values: Mapping[str, float], of_float: Mapping[str, float]) -> float:
        """The weighted sum."""
        if len(self.weights) == 1:
            return values[next(iter(self.weights))]
        return sum(weight * values[name] / (of_float[name] or 1) for name, weight in self.weights.items())

    def spread(self, spreads: Mapping[str, float], of_float: Mapping[str, float]) -> float:
        """Return the standard error of the weighted sum, from those of its figures."""
        if len(self.weights) == 1:
            return spreads[next(iter(self.weights))]
        return math.hypot(*(weight * spreads[name] / (of_float[name] or 1) for name, weight in self.weights.items()))

    def within(self, values: Mapping[str, float]) -> bool:
        """Whether every budget is kept."""
        return all(values[name] <= most for name, most in self.budgets.items())

    def excess(self, values: Mapping[str, float]) -> float:
        """By what share of itself each budget is exceeded, added up; 0 where every budget is kept."""
        return sum(max(values[name] / most - 1, 0.0) for name, most in self.budgets.items())


def read_goal(objective: Any, budgets: Mapping[str, float] | None = None) -> Goal:
    """One objective by name, or `{name: weight}`; budgets as `{name: at most}`.

    Raises:
        TuningError: an unknown name, or a weight or budget that is no positive number.
    """
    weights = {objective: 1.0} if isinstance(objective, str) else objective
    if not isinstance(weights, Mapping) or not weights:
        raise TuningError(f"objective is a name, as in 'size', or weights by name, not {objective!r}")
    limits = {} if budgets is None else budgets
    if not isinstance(limits, Mapping):
        raise TuningError(f"budgets are numbers by objective, as in {{'size': 1e6}}, not {limits!r}")
    return Goal(_by_own_name(weights, "objective"), _by_own_name(limits, "budgets"))


def _by_own_name(given: Mapping[str, float], what: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not (value > 0 and math.isfinite(value)):
            raise TuningError(f"{what}: {name!r} must be a positive number, not {value!r}")
        own = objective_of(name).name
        if own in found:
            raise TuningError(f"{what}: {name!r} is another name of {own!r}, which is given too; keep one of them")
        found[own] = float(value)
    return found
