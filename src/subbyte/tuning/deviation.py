"""What a choice of alternatives does to the model's outputs, told from what each op does alone."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from subbyte.spec import OpConfig, OpKey

Vector = NDArray[np.float64]


class Deviations:
    """Deviations of outputs (see `OutputError`) by each alternative of each op, which add up.

    Errors of ops may cancel out or strengthen one another: their sum as vectors tells, which a sum of their sizes does
    not.

    Args:
        by_op: of each op alone, in each alternative.
    """

    def __init__(self, by_op: Mapping[OpKey, Mapping[OpConfig, Vector]]) -> None:
        self._by_op = by_op

    def alternatives(self, key: OpKey) -> Sequence[OpConfig]:
        return list(self._by_op[key])

    def of_op(self, key: OpKey) -> Vector:
        """[alternatives, n], in the order of `alternatives`; n is 1 where none of them changes anything."""
        return np.stack(np.broadcast_arrays(*self._by_op[key].values()))


def angle(deviation: Vector) -> Vector:
    """[...], of deviations [..., n]: one minus the cosine between outputs and float ones."""
    return np.square(deviation).sum(-1) / 2  # type: ignore[no-any-return]
