"""What trials promise to save, by what is known so far."""

import numpy as np
from numpy.typing import NDArray

from subbyte.tuning.candidate import Candidate
from subbyte.tuning.choices import Choices, Row, Rows
from subbyte.tuning.deviation import Vector, angle
from subbyte.tuning.loss_model import LossModel
from subbyte.tuning.search import Search

_WORTH = 1e-4  # of the widest model's cost: less is no promise
_WORTH_RECOVERING = 5e-4  # the same of trials that are recovered, which take many times as long
_FAIR = 0.1  # chance: what has less is passed over
_REACH = 2.0  # times the largest angle that was good enough: further off losses grow faster than angles
_CLIMBS = 30
_REFUSED = 200  # in a row: an objective to which ops do not add is searched no further
_ALL = 1.0  # of the metric
_FAR = 2.0  # times the tolerable loss
_LEAST = 1e-6  # of it: what can be tolerated at the least


class Promises:
    """Expected savings of choices: what each costs less than the best so far, times the chance that it is good enough.

    Args:
        search: what is wanted.
        choices: that there are.
        recovered: whether each is recovered.
    """

    def __init__(self, search: Search, choices: Choices, *, recovered: bool = False) -> None:
        self._search, self._choices, self._recovered = search, choices, recovered
        self._worth = _WORTH_RECOVERING if recovered else _WORTH
        self._losses = LossModel(search.tolerable)
        self._frontier = choices.frontier()
        self._tried: set[bytes] = set()
        self._has_lost = False  # a trial more than is tolerable
        self._found: Row | None = None  # the cheapest that is good enough
        self._to_beat = np.inf  # what that costs, or what is known to be good enough beside these choices
        self._reached = np.inf  # the largest angle that was good enough; before that nothing is too far
        self._safest = self._most_accurate()

    def _most_accurate(self) -> Row:
        """Of the frontier, within the budgets; where nothing is, what exceeds them least. Of equals the dearest."""
        rows = self._frontier
        excess = self._choices.excess(rows)
        rows = rows[excess <= max(excess.min(), 0.0)]
        order = np.lexsort((-self._choices.costs(rows), angle(self._choices.deviations(rows))))
        return rows[order[0]]  # type: ignore[no-any-return]

    def learn(self, row: Row, loss: float, *, met: bool) -> None:
        """Take in what came of a trial.

        One that failed, of which nothing is known but that it is not good enough, counts as one that lost twice what is
        tolerable; none counts as one that lost more than all.
        """
        lost, deviation = self._lost(loss), self._deviation(row)
        self._losses = self._losses.having(deviation, lost)
        self._has_lost |= lost > self._search.tolerable
        if met:
            reached = float(angle(deviation))
            self._reached = reached if self._found is None else max(self._reached, reached)
        if met and (self._found is None or self._cost(row) < self._cost(self._found)):
            self._found = row
            self._to_beat = min(self._to_beat, self._cost(row))

    def hear(self, other: "Promises", row: Row, loss: float) -> None:
        """Take in what a trial of another's choices, that it has learned, says of these.

        One that went altogether wrong, as where recovery harms, says nothing of their losses.
        """
        if loss <= _FAR * self._search.accuracy.max_loss:
            self._losses = self._losses.having(other._deviation(row), self._lost(loss), own=False)
        self._to_beat = min(self._to_beat, other._to_beat)
        self._has_lost |= other._has_lost

    def _lost(self, loss: float) -> float:
        most = max(self._search.tolerable, _LEAST)
        return min(loss / self._search.unit, max(_ALL, _FAR * most)) if np.isfinite(loss) else _FAR * most

    def _deviation(self, row: Row) -> Vector:
        deviation: Vector = self._choices.deviations(row[None])[0]
        return deviation

    def candidate(self, row: Row) -> Candidate:
        """A choice as it is tried."""
        return self._search.candidate(self._choices.chosen(row), recovered=self._recovered)

    def most(self) -> float:
        """The largest expected saving."""
        return self._most_promising(self._losses)[1]

    def best(self, count: int) -> list[Row]:
        """So many untried choices that promise most, each as if the others lost what is expected.

        Where none promises anything and none has been good enough, the most accurate is the last.
        """
        losses = self._losses
        rows: list[Row] = []
        refused = 0  # where budgets are not kept, though what ops add says so
        while len(rows) < count and refused < _REFUSED:
            row, _ = self._most_promising(losses)
            if row is None:
                break
            self._tried.add(row.tobytes())
            if not self._search.keeps_budgets(self._choices.chosen(row)):
                refused += 1
            else:
                rows.append(row)
                deviations = self._choices.deviations(row[None])
                losses = losses.having(deviations[0], float(losses.predict(deviations)[0][0]))
        if not rows and self._to_beat == np.inf and self._safest.tobytes() not in self._tried:
            self._tried.add(self._safest.tobytes())
            rows.append(self._safest)
        return rows

    def _most_promising(self, losses: LossModel) -> tuple[Row | None, float]:
        """The one within reach, or where none is, of all; and what it promises."""
        near = self._sought(losses, _REACH * self._reached)
        return self._sought(losses, np.inf) if near[0] is None else near

    def _sought(self, losses: LossModel, farthest: float) -> tuple[Row | None, float]:
        """Sought on the frontier and around the best so far, and from there step by step; of at most this angle."""
        rows = self._frontier if self._found is None else self._joined(self._frontier, self._found)
        found, most = None, 0.0
        for _ in range(_CLIMBS):
            savings = self._savings(rows, losses, farthest)
            index = int(np.argmax(savings))
            if savings[index] <= max(most, self._worth):
                break
            found, most = rows[index], float(savings[index])
            rows = self._choices.near(found)
        return found, most

    def _joined(self, rows: Rows, row: Row) -> Rows:
        return np.concatenate([rows, self._choices.near(row)])

    def _savings(self, rows: Rows, losses: LossModel, farthest: float) -> Vector:
        """[m], expected, of what is untried, not too far and within the budgets; 0 of the rest."""
        most = self._cost(self._safest) if self._to_beat == np.inf else self._to_beat
        costs = most - self._choices.costs(rows)
        deviations = self._choices.deviations(rows)
        eligible = (costs > self._worth) & (self._choices.excess(rows) <= 0) & (angle(deviations) <= farthest)
        eligible &= np.array([row.tobytes() not in self._tried for row in rows], dtype=bool)
        savings: NDArray[np.float64] = np.zeros(len(rows))
        if eligible.any():
            chances = losses.chance(deviations[eligible])
            savings[eligible] = np.where(chances >= self._fair, costs[eligible] * chances, 0.0)
        return savings

    @property
    def _fair(self) -> float:
        """The least chance that counts. Until a trial has lost too much, nothing says that chances are as small."""
        return _FAIR if self._has_lost else 0.0

    def _cost(self, row: Row) -> float:
        return float(self._choices.costs(row[None])[0])
