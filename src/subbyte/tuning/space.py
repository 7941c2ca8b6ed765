"""The tuning space: for each op the configurations that it may have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from subbyte.errors import TuningError, nearest
from subbyte.spec import OpConfig, OpInfo, OpKey, TensorSpec, TuneConfig

FLOAT_BITS = 32

Cost = Callable[[OpKey, OpConfig], float]
Costs = Callable[[OpKey, OpConfig], Mapping[str, float]]


@dataclass(frozen=True)
class TuningSpace:
    """What the strategies search.

    Args:
        ops: in the order they run.
        alternatives: for each op.

    Raises:
        TuningError: no op has a choice.
    """

    ops: Sequence[OpInfo]
    alternatives: Mapping[OpKey, Sequence[OpConfig]]

    def __post_init__(self) -> None:
        if not self.tunable:
            raise TuningError(
                "there is nothing to tune: capability and configuration leave every op one choice; name alternatives, "
                "as in op_type_dict={'Conv2d': {'weight': {'dtype': ['int4', 'int8']}}}, or leave the precision out"
            )

    @property
    def tunable(self) -> list[OpInfo]:
        """The ops that have a choice."""
        return [op for op in self.ops if len(self.alternatives[op.key]) > 1]

    def config(self, chosen: Mapping[OpKey, OpConfig]) -> TuneConfig:
        """A configuration of the whole model; ops that are not named get their first alternative.

        Raises:
            TuningError: an op is named that is not there.
        """
        unknown = [name for name, kind in chosen if (name, kind) not in self.alternatives]
        if unknown:
            raise TuningError(
                f"no op is named {unknown[0]!r}{nearest(unknown[0], [name for name, _ in self.alternatives])}"
            )
        return TuneConfig({key: chosen.get(key, each[0]) for key, each in self.alternatives.items()})

    def widest(self) -> TuneConfig:
        """Every op in its widest alternative: float, where that is one."""
        return self._widest

    @cached_property
    def _widest(self) -> TuneConfig:
        return TuneConfig({key: max(each, key=width) for key, each in self.alternatives.items()})

    def undominated(self, key: OpKey, costs: Costs) -> list[OpConfig]:
        """The alternatives of an op but those that are narrower than another and save nothing by it.

        Args:
            key: of the op.
            costs: everything that an alternative of an op adds.
        """
        figures = {config: costs(key, config) for config in self.alternatives[key]}
        return [one for one in figures if not any(_dominates(other, one, figures) for other in figures)]

    def ladder(self, key: OpKey, cost: Cost) -> list[OpConfig]:
        """The rungs of an op, from narrow to wide.

        The cheapest first; each costs more than the one before it, and is at least as wide in weight and activation. Of
        equally cheap ones the widest is taken, as it is the most accurate.

        Args:
            key: of the op.
            cost: what an alternative of an op adds to the objective.
        """
        rungs: list[OpConfig] = []
        costs = {config: cost(key, config) for config in self.alternatives[key]}
        for config in sorted(costs, key=lambda each: (costs[each], tuple(-bits for bits in width(each)))):
            if not rungs or (costs[config] > costs[rungs[-1]] and _is_as_wide(config, rungs[-1])):
                rungs.append(config)
        return rungs


def bits(spec: TensorSpec | None) -> int:
    """Of a tensor; one that is not quantized has 32."""
    return FLOAT_BITS if spec is None else spec.dtype.bits


def width(config: OpConfig) -> tuple[int, int, int]:
    """Bits of both factors together, of the weight, of the activation: wider is more accurate, as a rule."""
    weight, activation = bits(config.weight), bits(config.activation)
    return weight + activation, weight, activation


def _dominates(one: OpConfig, other: OpConfig, figures: Mapping[OpConfig, Mapping[str, float]]) -> bool:
    if width(one) == width(other) or not _is_as_wide(one, other):
        return False
    return all(cost <= figures[other][name] for name, cost in figures[one].items())


def _is_as_wide(config: OpConfig, other: OpConfig) -> bool:
    return all(one >= two for one, two in zip(width(config)[1:], width(other)[1:], strict=True))
