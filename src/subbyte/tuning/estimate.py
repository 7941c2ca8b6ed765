"""Losses without luck: what configurations that deviate about as much from the float model lose on average."""

from collections.abc import Sequence
from math import exp, isfinite, log

import numpy as np

from subbyte.errors import ModelError
from subbyte.spec import TuneConfig
from subbyte.tuning.deviation import angle
from subbyte.tuning.search import Search
from subbyte.tuning.sensitivity import parts

_REACH = 2.0  # times a deviation: losses within it count, those further off less and less


def estimated_loss(deviation: float, deviations: Sequence[float], losses: Sequence[float]) -> float:
    """Return the loss expected of a deviation: as many times that as the losses near it are of theirs.

    The weight of a trial falls with the distance of the logarithms, as a normal density whose standard deviation is a
    factor of two (Nadaraya and Watson, 1964, for the quotient of loss and deviation).

    Args:
        deviation: above 0.
        deviations: of trials, each above 0.
        losses: of these trials.
    """
    weights = [exp(-0.5 * (log(each / deviation) / log(_REACH)) ** 2) for each in deviations]
    lost = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
    return deviation * lost / sum(weight * each for weight, each in zip(weights, deviations, strict=True))


class ModelDeviations:
    """How far outputs on calibration data deviate from the float model's, by configuration.

    Args:
        search: whose model tells them.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._known: dict[str, float | None] = {}

    def of(self, key: str, config: TuneConfig, *, measure: bool = False) -> float | None:
        """Return the deviation of a configuration, as an angle; None if it is not known, or cannot be told.

        Args:
            key: names the configuration.
            config: of every op.
            measure: whether it may take a forward. Without one the deviations of the ops are added, if the strategy has
                measured them all.
        """
        if key not in self._known:
            found = self._added(config)
            if found is None and not measure:
                return None
            self._known[key] = self._measured(config) if found is None else found
        return self._known[key]

    def _added(self, config: TuneConfig) -> float | None:
        fixed = config.op.keys() - {op.key for op in self._search.space.tunable}
        every = [(key, part) for key, each in config.op.items() for part in parts(each)]
        if any(each not in self._search.op_errors for each in every if each[0] not in fixed):
            return None
        deviations = [self._search.op_error(*each).deviation.astype(np.float64) for each in every]
        return _finite(float(angle(sum(deviations, start=np.zeros(1)))))

    def _measured(self, config: TuneConfig) -> float | None:
        try:
            return _finite(self._search.model.error(config).angle)
        except ModelError:  # outputs that cannot be compared
            return None


def _finite(deviation: float) -> float | None:
    return deviation if isfinite(deviation) else None
