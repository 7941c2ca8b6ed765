"""The tuning space: for each op the configurations that it may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from subbyte.errors import TuningError, nearest
from subbyte.spec import OpConfig, OpInfo, OpKey, TuneConfig
from subbyte.tuning.ladder import width


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
