"""A model whose errors and costs are known, for strategies to search."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from subbyte import OpConfig, TensorSpec, TuneConfig
from subbyte.adaptor import OutputError, Recover, TunableModel
from subbyte.spec import OpInfo, OpKey
from subbyte.tuning.accuracy import Accuracy
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.ladder import FLOAT_BITS, bits
from subbyte.tuning.objective import objective_of, read_goal
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.space import TuningSpace
from subbyte.tuning.trial import Trial


def pair(weight: int, activation: int = 8, algorithm: str = "minmax") -> OpConfig:
    return OpConfig(
        TensorSpec(f"int{weight}", granularity="per_channel", algorithm=algorithm), TensorSpec(f"uint{activation}")
    )


FLOAT = OpConfig()
LADDER = (pair(8), *(pair(width) for width in range(7, 1, -1)), FLOAT)


class FakeModel(TunableModel):
    """Ops of given sizes and sensitivities: an op's error is its sensitivity times 4^-bits of its weight."""

    def __init__(
        self, sizes: Mapping[str, int], sensitivities: Mapping[str, float],
        alternatives: Mapping[str, Sequence[OpConfig]] | None = None, types: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        kinds = types or {}
        self.ops = [OpInfo(name, kinds.get(name, "Linear"), "weighted") for name in sizes]
        self.sizes, self.sensitivities = sizes, sensitivities
        given = alternatives or {}
        self.alternatives = {op.key: given.get(op.name, LADDER) for op in self.ops}
        self.identity = {"model": "fake", "data": "none"}
        self.batches: Sequence[Any] = ()
        self.measured = 0
        self.applied: list[TuneConfig] = []

    def first_samples(self, count: int) -> Sequence[Any]:
        return self.batches

    def apply(self, config: TuneConfig) -> Any:
        self.applied.append(config)
        return config

    def size(self, config: TuneConfig) -> int:
        return sum(self.sizes[name] * bits(config.op[name, kind].weight) for name, kind in config.op)

    def bops(self, config: TuneConfig) -> int:
        return sum(
            self.sizes[name] * bits(each.weight) * bits(each.activation) for (name, _), each in config.op.items()
        )

    def latency(self, config: TuneConfig, samples: int = 1) -> float:
        """Floats are fast here, two bits the slowest: what a machine without kernels may be like."""
        return samples * sum(self.sizes[name] / bits(each.weight) for (name, _), each in config.op.items())

    def measured_latency(self, model: Any, samples: int = 1) -> float:
        return 2.0 * samples

    def output_error(self, key: OpKey, config: OpConfig) -> OutputError:
        return self._error_of_op(key, config, is_recovered=False)

    def _error_of_op(self, key: OpKey, config: OpConfig, *, is_recovered: bool) -> OutputError:
        """Every weight and every input deviates in a direction of its own, so that errors add up.

        Recovery leaves a quarter of a weight's error, but for 2 bits, which it does not help.
        """
        self.measured += 1
        names = list(self.sizes)
        deviation = np.zeros((len(names), 2))
        for part, (spec, share) in enumerate(((config.weight, 1.0), (config.activation, 0.1))):
            if bits(spec) < FLOAT_BITS:
                helped = is_recovered and part == 0 and bits(spec) > 2
                error = self.sensitivities[key[0]] * share * 4.0 ** -bits(spec) * (0.25 if helped else 1.0)
                deviation[names.index(key[0]), part] = (2 * error) ** 0.5
        return OutputError(float(np.square(deviation).sum() / 2), deviation.flatten().astype(np.float32))

    def error(self, config: TuneConfig, recover: Recover | None = None) -> OutputError:
        if recover is not None:
            recover(config)
        found = [self._error_of_op(key, each, is_recovered=recover is not None) for key, each in config.op.items()]
        return OutputError(sum(each.squared for each in found), np.sum([each.deviation for each in found], axis=0))

    def weight_error(self, key: OpKey, config: OpConfig) -> float:
        return 0.0 if config.weight is None else 4.0 ** -bits(config.weight)

    def hessian_traces(self, loss_fn: Callable[..., Any], seed: int = 0) -> dict[OpKey, float]:
        return {op.key: self.sensitivities[op.name] for op in self.ops}

    def prepare(self, config: TuneConfig) -> Any:
        return config

    def copy(self, config: TuneConfig) -> Any:
        return config

    def quantize(self, config: TuneConfig) -> Any:
        return config

    def convert(self, prepared: Any) -> Any:
        return prepared


def search_of(
    model: FakeModel, max_loss: float = 0.01, objective: Any = "size", budgets: Any = None, **given: Any
) -> Search:
    space, goal = TuningSpace(model.ops, model.alternatives), read_goal(objective, budgets)
    of_float = {name: objective_of(name).of(model, space.widest()) for name in goal.names}
    return Search(space, model, goal, Accuracy(max_loss), of_float, **given)


def trial_of(search: Search, candidate: Candidate, loss: float, number: int = 0) -> Trial:
    objectives = search.objectives(candidate.config)
    cost = search.goal.cost(objectives, search.of_float)
    met = loss <= search.accuracy.max_loss and search.goal.within(objectives)
    return Trial(
        number, candidate.config, {"metric": 1 - loss}, loss, objectives, cost, met, candidate.recovery,
        excess=search.goal.excess(objectives),
    )  # fmt: skip


def play(search: Search, proposals: Proposals, loss: Callable[[Candidate, int], float], most: int = 200) -> list[Trial]:
    """Run a strategy against losses that are given, as the loop would; a candidate is tried once."""
    trials: list[Trial] = []
    known: dict[str, Trial] = {}
    results: list[Trial] | None = None
    proposed = 0
    while len(trials) < most and proposed < 2 * most:  # what is drawn by chance may be known for ever
        proposed += 1
        try:
            batch = next(proposals) if results is None else proposals.send(results)
        except StopIteration:
            break
        results = []
        for candidate in batch:
            key = f"{sorted((k, str(v)) for k, v in candidate.config.op.items())} {candidate.recovery}"
            if key not in known:
                known[key] = trial_of(search, candidate, loss(candidate, len(trials)), len(trials))
                trials.append(known[key])
            results.append(known[key])
    return trials


def widths(trial: Trial) -> list[int]:
    """The bits of each op's weight."""
    return [bits(each.weight) for each in trial.config.op.values()]
