"""Expected savings of configurations that are not tried yet, given the trials so far."""

import numpy as np
from numpy.typing import NDArray

from subbyte.tuning.candidate import Candidate
from subbyte.tuning.choices import Choices, Row, Rows
from subbyte.tuning.deviation import Vector, angle
from subbyte.tuning.loss_model import LossModel
from subbyte.tuning.search import Search

_LEAST_SAVING = 1e-4  # Fraction of the widest model's cost. Choices that save less are not tried.
_LEAST_SAVING_RECOVERED = 5e-4  # The same for recovered trials, which take many times as long.
_LEAST_CHANCE = 0.1  # Choices with a smaller chance to be good enough are skipped.
_REACH = 2.0  # Limit of the search, times the largest good angle. Beyond it, losses grow faster than angles.
_MOST_STEPS = 30  # Steps of the local search.
_MOST_OVER_BUDGET = 200  # Choices over budget before the search gives up: the figures of the ops do not add up here.
_WHOLE_METRIC = 1.0  # The loss of the whole metric. Larger losses count as this.
_FAR = 2.0  # Times the tolerable loss: a failed trial counts as this, and a larger loss teaches nothing about others.
_LEAST_TOLERABLE = 1e-6  # Lower limit of the tolerable loss, as a fraction of the metric.


class ExpectedSavings:
    """Expected saving of each choice: how much cheaper it is than the best so far, times its chance to be good enough.

    Args:
        search: what is wanted.
        choices: that there are.
        recovered: whether each is recovered.
    """

    def __init__(self, search: Search, choices: Choices, *, recovered: bool = False) -> None:
        self._search, self._choices, self._recovered = search, choices, recovered
        self._least_saving = _LEAST_SAVING_RECOVERED if recovered else _LEAST_SAVING
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
        """Update the loss model and the best choice with a trial.

        A failed trial counts as one that lost twice the tolerable loss. A loss above the whole metric counts as the
        whole metric, or as twice the tolerable loss if that is larger.
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

    def learn_from(self, other: "ExpectedSavings", row: Row, loss: float) -> None:
        """Update the loss model with a trial of the other kind of choices: plain for recovered, or the reverse.

        A loss above twice the tolerable loss does not enter the loss model: recovery may have harmed that model.
        """
        if loss <= _FAR * self._search.accuracy.max_loss:
            self._losses = self._losses.having(other._deviation(row), self._lost(loss), own=False)
        self._to_beat = min(self._to_beat, other._to_beat)
        self._has_lost |= other._has_lost

    def _lost(self, loss: float) -> float:
        most = max(self._search.tolerable, _LEAST_TOLERABLE)
        return min(loss / self._search.unit, max(_WHOLE_METRIC, _FAR * most)) if np.isfinite(loss) else _FAR * most

    def _deviation(self, row: Row) -> Vector:
        deviation: Vector = self._choices.deviations(row[None])[0]
        return deviation

    def candidate(self, row: Row) -> Candidate:
        """A choice as it is tried."""
        return self._search.candidate(self._choices.chosen(row), recovered=self._recovered)

    def most(self) -> float:
        """Return the largest expected saving."""
        return self._largest(self._losses)[1]

    def best(self, count: int) -> list[Row]:
        """Return up to `count` untried choices with the largest expected savings.

        Each is chosen as if those before it had their predicted loss. If no choice has an expected saving and none has
        been good enough yet, return the most accurate choice, once.
        """
        losses = self._losses
        rows: list[Row] = []
        refused = 0  # where budgets are not kept, though what ops add says so
        while len(rows) < count and refused < _MOST_OVER_BUDGET:
            row, _ = self._largest(losses)
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

    def _largest(self, losses: LossModel) -> tuple[Row | None, float]:
        """Return the choice with the largest expected saving within reach, or of all if none is, and that saving."""
        near = self._sought(losses, _REACH * self._reached)
        return self._sought(losses, np.inf) if near[0] is None else near

    def _sought(self, losses: LossModel, farthest: float) -> tuple[Row | None, float]:
        """Return the best choice of at most this angle, by local search from the frontier and the best so far."""
        rows = self._frontier if self._found is None else self._joined(self._frontier, self._found)
        found, most = None, 0.0
        for _ in range(_MOST_STEPS):
            savings = self._savings(rows, losses, farthest)
            index = int(np.argmax(savings))
            if savings[index] <= max(most, self._least_saving):
                break
            found, most = rows[index], float(savings[index])
            rows = self._choices.near(found)
        return found, most

    def _joined(self, rows: Rows, row: Row) -> Rows:
        return np.concatenate([rows, self._choices.near(row)])

    def _savings(self, rows: Rows, losses: LossModel, farthest: float) -> Vector:
        """Return the expected saving [m] of each row; 0 if it was tried, is too far or exceeds a budget."""
        most = self._cost(self._safest) if self._to_beat == np.inf else self._to_beat
        costs = most - self._choices.costs(rows)
        deviations = self._choices.deviations(rows)
        eligible = (costs > self._least_saving) & (self._choices.excess(rows) <= 0) & (angle(deviations) <= farthest)
        eligible &= np.array([row.tobytes() not in self._tried for row in rows], dtype=bool)
        savings: NDArray[np.float64] = np.zeros(len(rows))
        if eligible.any():
            chances = losses.chance(deviations[eligible])
            savings[eligible] = np.where(chances >= self._fair, costs[eligible] * chances, 0.0)
        return savings

    @property
    def _fair(self) -> float:
        """The smallest chance that counts: 0 until a trial loses too much, as no chance is known to be small before."""
        return _LEAST_CHANCE if self._has_lost else 0.0

    def _cost(self, row: Row) -> float:
        return float(self._choices.costs(row[None])[0])
