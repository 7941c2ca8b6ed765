"""What a configuration will lose, told from its outputs' deviation and from what others lost that were tried."""

from collections.abc import Sequence
from math import erf

import numpy as np
from numpy.typing import NDArray

from subbyte.tuning.deviation import Vector, angle

_LEAST = 1e-6
_DOUBT = 0.25  # the variance of the factor
_FLOOR = 0.4  # of the tolerable loss: the spread of losses where outputs hardly deviate
_SHARE = 0.13  # of the angle: what the spread grows by
_ALIKE = 0.9  # of the variance: what configurations whose outputs deviate alike have in common
_KIN = 0.5  # correlation of the factors of plain configurations and of recovered ones


class LossModel:
    """Gaussian process regression (Rasmussen and Williams, 2006) of losses on deviations.

    A loss is expected to be as the angle, by a factor that is not known: its prior is normal, N(1, 1/4).
    About that it spreads by s = floor + share * angle. Of two configurations the covariance is
    `1/4 angle angle' + s s' (alike cos^2 + (1 - alike) [the same])`, cos being that between their deviations: what errs
    alike loses alike, also by chance, as all are evaluated on the same samples. Configurations of the other kind, plain
    ones where recovered ones are told of or the reverse, have a factor of their own, which is correlated.

    Args:
        max_loss: that is tolerable.
        deviations: of configurations that were tried.
        losses: of these.
        own: whether each is of the kind that is told of.
    """

    def __init__(
        self,
        max_loss: float,
        deviations: Sequence[Vector] = (),
        losses: Sequence[float] = (),
        own: Sequence[bool] = (),
    ) -> None:
        self._max_loss = max_loss
        self._floor = _FLOOR * max(max_loss, _LEAST)
        self._deviations, self._losses, self._own = deviations, losses, own

    def having(self, deviation: Vector, loss: float, *, own: bool = True) -> "LossModel":
        """What is known with one configuration more."""
        return LossModel(self._max_loss, [*self._deviations, deviation], [*self._losses, loss], [*self._own, own])

    def predict(self, deviations: Vector) -> tuple[Vector, Vector]:
        """Mean and standard deviation [m] of the losses of configurations, from deviations [m, n]."""
        angles = angle(deviations)
        spread = self._floor + _SHARE * angles
        variance = _DOUBT * np.square(angles) + np.square(spread)
        if not self._losses:
            return angles, np.sqrt(variance)
        known, own = np.stack(np.broadcast_arrays(*self._deviations)), np.array(self._own)
        within = self._covariance(known, own, known, own) + np.diag((1 - _ALIKE) * np.square(self._spread(known)))
        across = self._covariance(known, own, deviations, np.ones(len(deviations), dtype=bool))
        weights = np.linalg.solve(within, across)
        mean = angles + (np.array(self._losses) - angle(known)) @ weights
        explained = (across * weights).sum(0)
        return mean, np.sqrt(np.maximum(variance - explained, 1e-4 * variance))

    def chance(self, deviations: Vector) -> Vector:
        """[m], that the losses of configurations are tolerable."""
        mean, deviation = self.predict(deviations)
        distance = (self._max_loss - mean) / deviation / 2**0.5
        return np.array([(1 + erf(each)) / 2 for each in distance])

    def _spread(self, deviations: Vector) -> Vector:
        return self._floor + _SHARE * angle(deviations)

    def _covariance(self, one: Vector, of_one: NDArray[np.bool_], other: Vector, of_other: NDArray[np.bool_]) -> Vector:
        lengths = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
        cosine = (one @ other.T) / np.maximum(lengths, 1e-30)
        alike = _ALIKE * np.square(cosine) * np.outer(self._spread(one), self._spread(other))
        kin = np.where(of_one[:, None] == of_other, 1.0, _KIN)
        covariance: Vector = _DOUBT * kin * np.outer(angle(one), angle(other)) + alike
        return covariance
