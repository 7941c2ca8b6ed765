"""What a strategy sees of a search."""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import hypot
from typing import Any

from subbyte.adaptor import OutputError, TunableModel
from subbyte.algorithms import RecoveryMethod, recover
from subbyte.spec import OpConfig, OpKey, TuneConfig
from subbyte.tuning.accuracy import Accuracy, Metrics
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.ladder import LeftOut, dominated, ladder
from subbyte.tuning.objective import Goal, objective_of
from subbyte.tuning.space import TuningSpace
from subbyte.tuning.trial import Trial

# A strategy yields candidates that may be tried side by side, and is sent their trials, in the same order.
Proposals = Generator[Sequence[Candidate], Sequence[Trial], None]
Progress = Callable[[str, float], None]


def _go_on() -> None:
    """Recover whatever the time is."""


class TimeIsOverError(Exception):
    """The time of a search is over while its strategy measures; the loop ends the search."""


_LEAST = 0.1  # of a budget: what is to be saved counts as no less
_PRICES = (0.0, 1.0, 10.0, 100.0)  # of what is under a budget, where ladders count it
_QUICK_SAMPLES = 64  # of the calibration data, for a quick recovery


@dataclass
class Search:
    """The space, what is wanted, and what has been found.

    Args:
        space: that is searched.
        model: that trials run on.
        goal: what to make small.
        accuracy: what a loss is, and how much of it is tolerable.
        of_float: what the widest configuration costs, by objective.
        recipes: recovery methods that candidates may ask for.
        seed: of the strategy's and of these methods' randomness.
        loss_fn: from a model and a batch to a differentiable loss, for strategies that need gradients.
        workers: that try candidates side by side, which a strategy may propose as many of at a time.
        baseline: the float model's metrics, once they are known.
        progress: told what is measured before the first trial, and how much of it is done.
        is_late: whether the time is over.
        errors: of the model's outputs by alternatives of each op, once they are measured (see `errors_of`).
        part_errors: the same of the weight of an op alone quantized, and of its inputs alone.
        perturbations: of the loss by each op's weight alone quantized, where the strategy goes by them (see `hawq_v2`).
        op_errors: of the model's outputs with a part of an op alone quantized, as far as they are measured.
        left_out: alternatives of each op that the strategy did not look at because they save nothing, and why.
    """

    space: TuningSpace
    model: TunableModel
    goal: Goal
    accuracy: Accuracy
    of_float: Mapping[str, float]
    recipes: Sequence[RecoveryMethod] = ()
    seed: int = 0
    loss_fn: Callable[..., Any] | None = None
    workers: int = 1
    baseline: Metrics = field(default_factory=dict)
    progress: Progress = lambda what, share: None
    is_late: Callable[[], bool] = lambda: False
    errors: dict[OpKey, dict[OpConfig, float]] = field(default_factory=dict)
    part_errors: dict[OpKey, dict[OpConfig, float]] = field(default_factory=dict)
    perturbations: dict[OpKey, dict[OpConfig, float]] = field(default_factory=dict)
    left_out: dict[OpKey, dict[OpConfig, LeftOut]] = field(default_factory=dict)
    op_errors: dict[tuple[OpKey, OpConfig], OutputError] = field(default_factory=dict)
    _added: dict[tuple[OpKey, OpConfig], dict[str, float]] = field(default_factory=dict)
    _ladders: dict[OpKey, list[OpConfig]] = field(default_factory=dict)
    _made: tuple[Candidate, Any] | None = None  # the model that was recovered last
    _kept: list[tuple[Candidate, Any]] = field(default_factory=list)

    @property
    def recovery(self) -> str:
        """Names the recovery methods and what decides what they do."""
        return f"{', '.join(map(repr, self.recipes))}; seed {self.seed}" if self.recipes else ""

    def realized(self, candidate: Candidate, *, in_time: bool = True) -> Any:
        """Return the model as a candidate has it, ready to be evaluated.

        Args:
            candidate: whose model is made, or a copy of the one that was kept.
            in_time: whether its recovery ends when the time of the search is over.

        Raises:
            TimeIsOverError: the time is over before all of it is recovered.
        """
        if not candidate.recovered:
            return self.model.apply(candidate.config)
        model = self._kept_model(candidate) or self._recovered(candidate, self._check_time if in_time else _go_on)
        self._made = candidate, copy.deepcopy(model)  # an evaluation may change the model
        return model

    def keep(self, candidate: Candidate) -> None:
        """Keep the model of a candidate for `converted`, if it was recovered last and in this process.

        One that was recovered quickly is kept until the next.
        """
        if self._made is not None and self._made[0] == candidate:
            self._kept = [each for each in self._kept if each[0].recovery == "full"] + [self._made]

    def converted(self, candidate: Candidate) -> Any:
        """Return the model as a candidate has it, as a model of its own with packed weights."""
        if not candidate.recovered:
            return self.model.quantize(candidate.config)
        return self.model.convert(self._kept_model(candidate) or self._recovered(candidate, _go_on))

    def _kept_model(self, candidate: Candidate) -> Any:
        return next((copy.deepcopy(model) for kept, model in self._kept if kept == candidate), None)

    def _recovered(self, candidate: Candidate, before_unit: Callable[[], None]) -> Any:
        if candidate.recovery == "quick":
            prepared = self.model.copy(candidate.config)
            self._recover_quickly(prepared, before_unit)
        else:
            prepared = self.model.prepare(candidate.config)
            recover(prepared, self.recipes, self.model.batches, seed=self.seed, before_unit=before_unit)
        return prepared.eval()

    def _recover_quickly(self, prepared: Any, before_unit: Callable[[], None]) -> None:
        data = self.model.first_samples(_QUICK_SAMPLES)
        recover(prepared, self.recipes, data, seed=self.seed, quick=True, before_unit=before_unit)

    def _check_time(self) -> None:
        if self.is_late():
            raise TimeIsOverError

    def measuring(self, what: str, share: float) -> None:
        """Say between two measurements what is measured, and how much of it is done.

        Raises:
            TimeIsOverError: there is no time for more.
        """
        self.progress(what, share)
        self._check_time()

    def op_error(self, key: OpKey, part: OpConfig) -> OutputError:
        """Return how far the model's outputs are from float where one op alone is quantized; measured once."""
        if (key, part) not in self.op_errors:
            self.op_errors[key, part] = self.model.output_error(key, part)
        return self.op_errors[key, part]

    def recovered_error(self, config: TuneConfig) -> OutputError:
        """Return how far the model's outputs are from float in a configuration that is recovered quickly.

        Raises:
            RecoveryError, CalibrationError: the methods cannot work on it.
            TimeIsOverError: the time is over before all of it is recovered.
        """
        return self.model.error(config, lambda model: self._recover_quickly(model, self._check_time))

    @property
    def unit(self) -> float:
        """The loss of all that the float model has."""
        return self.accuracy.unit(self.baseline)

    @property
    def tolerable(self) -> float:
        """The loss that is, as a share of that."""
        return self.accuracy.max_loss / self.unit

    def objectives(self, config: TuneConfig) -> dict[str, float]:
        """Every figure that is asked for."""
        return {name: objective_of(name).of(self.model, config) for name in self.goal.names}

    def figures(self, config: TuneConfig) -> dict[str, float]:
        """Every figure that a trial keeps."""
        return {name: objective_of(name).of(self.model, config) for name in self.goal.looked_at}

    def candidate(self, chosen: Mapping[OpKey, OpConfig], *, recovered: bool = False) -> Candidate:
        """Return a candidate that gives some ops these alternatives, and the others their first.

        Args:
            chosen: by op.
            recovered: whether it is recovered, quickly: the best are recovered in full when the strategy has ended.
        """
        return Candidate(self.space.config(chosen), "quick" if recovered else "none")

    def cost(self, config: TuneConfig) -> float:
        """What the search makes small."""
        return self.goal.cost(self.objectives(config), self.of_float)

    def op_objectives(self, key: OpKey, config: OpConfig) -> dict[str, float]:
        """What one op adds to every figure in an alternative, were it alone quantized; negative where it saves."""
        if (key, config) not in self._added:
            alone = self.objectives(TuneConfig({**self.space.widest().op, key: config}))
            self._added[key, config] = {name: value - self.of_float[name] for name, value in alone.items()}
        return self._added[key, config]

    def op_cost(self, key: OpKey, config: OpConfig) -> float:
        """The same of the cost."""
        return self.goal.cost(self.op_objectives(key, config), self.of_float)

    def op_spreads(self, key: OpKey, config: OpConfig) -> dict[str, float]:
        """Return the standard error of what one op adds to every figure; 0 of those that are computed."""
        return {name: objective_of(name).spread(self.model, key, config) for name in self.goal.names}

    def op_spread(self, key: OpKey, config: OpConfig) -> float:
        """Return the standard error of what one op adds to the cost."""
        return self.goal.spread(self.op_spreads(key, config), self.of_float)

    def priced(self, price: float, key: OpKey, config: OpConfig) -> float:
        """What one op adds to the cost, as a share of the widest model's, and for a price to what is under a budget.

        Args:
            price: of saving all that the widest model has to save for each budget.
            key, config: of the op.
        """
        cost = self.op_cost(key, config) / (abs(self.goal.cost(self.of_float, self.of_float)) or 1)
        if not price:
            return cost
        added = self.op_objectives(key, config)
        return cost + price * sum(added[name] / saved for name, saved in self._to_save.items())

    def priced_spread(self, price: float, key: OpKey, config: OpConfig) -> float:
        """Return the standard error of `priced`."""
        spread = self.op_spread(key, config) / (abs(self.goal.cost(self.of_float, self.of_float)) or 1)
        added = self.op_spreads(key, config)
        return hypot(spread, *(price * added[name] / saved for name, saved in self._to_save.items()))

    @cached_property
    def _to_save(self) -> dict[str, float]:
        """What is to be saved for each budget."""
        return {name: max(self.of_float[name] - most, _LEAST * most) for name, most in self.goal.budgets.items()}

    def keeps_budgets(self, chosen: Mapping[OpKey, OpConfig]) -> bool:
        """Whether every budget is kept where some ops have these alternatives, and the others their first."""
        return all(self.keeps_budget(name, chosen) for name in self.goal.budgets)

    def keeps_budget(self, name: str, chosen: Mapping[OpKey, OpConfig]) -> bool:
        """The same of the budget of one objective."""
        return objective_of(name).of(self.model, self.space.config(chosen)) <= self.goal.budgets[name]

    def useful(self, key: OpKey) -> list[OpConfig]:
        """The alternatives of an op but those that are narrower than another and save nothing by it."""
        found = self.space.alternatives[key]
        costs = {name: partial(self._op_figure, self.op_objectives, name, key) for name in self.goal.names}
        spreads = {name: partial(self._op_figure, self.op_spreads, name, key) for name in self.goal.names}
        self.left_out[key] = dominated(found, costs, spreads)
        return [config for config in found if config not in self.left_out[key]]

    @staticmethod
    def _op_figure(
        figures: Callable[[OpKey, OpConfig], Mapping[str, float]], name: str, key: OpKey, config: OpConfig
    ) -> float:
        return figures(key, config)[name]

    def ladder(self, key: OpKey) -> list[OpConfig]:
        """The rungs of an op, from narrow to wide, as the objective counts.

        Where the narrowest rungs of all ops would exceed a budget, what is under one counts, too: a ladder for size has
        no narrow inputs, which a budget of bit operations may need.
        """
        if key not in self._ladders:
            self._ladders[key], self.left_out[key] = self._ladder(key, self._price)
        return self._ladders[key]

    def _ladder(self, key: OpKey, price: float) -> tuple[list[OpConfig], dict[OpConfig, LeftOut]]:
        cost, spread = (partial(each, price) for each in (self.priced, self.priced_spread))
        return ladder(
            self.space.alternatives[key],
            partial(cost if price else self.op_cost, key),
            partial(spread if price else self.op_spread, key),
        )

    @cached_property
    def _price(self) -> float:
        """The lowest at which the narrowest rungs keep the budgets."""
        for price in _PRICES:
            if self.keeps_budgets({op.key: self._ladder(op.key, price)[0][0] for op in self.space.tunable}):
                return price
        return _PRICES[-1]

    def is_tolerable(self, trial: Trial) -> bool:
        """Whether the loss is, be the budgets kept or not."""
        return trial.met or (trial.excess > 0 and trial.samples is None and trial.loss <= self.accuracy.max_loss)
