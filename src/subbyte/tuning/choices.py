"""Choices of one alternative for each op, as rows of numbers: what they cost and how outputs deviate, many at once."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.deviation import Deviations, Vector
from subbyte.tuning.search import Search

Row = NDArray[np.int64]  # [ops], the number of each op's alternative, from cheap to dear
Rows = NDArray[np.int64]  # [m, ops]

_PRICES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # of what is under a budget
_WEIGHTS = np.geomspace(1e6, 1e-2, 65)  # of the error beside the cost
_PASSES = 8
_ROUNDING = 1e-9


class Choices:
    """What may be chosen.

    Args:
        search: that says what each alternative costs.
        deviations: of outputs by each.
    """

    def __init__(self, search: Search, deviations: Deviations) -> None:
        self._search = search
        self._keys = [op.key for op in search.space.tunable]
        self._alternatives: list[list[OpConfig]] = []
        self._deviations: list[Vector] = []
        for key in self._keys:
            configs, found = deviations.alternatives(key), deviations.of_op(key)
            order = sorted(range(len(configs)), key=lambda each: search.op_cost(key, configs[each]))
            self._alternatives.append([configs[each] for each in order])
            self._deviations.append(found[order])
        self._costs = self._each(lambda key, config: search.priced(0.0, key, config))
        self._figures = {name: self._each(partial(_added, search, name)) for name in search.goal.budgets}

    def chosen(self, row: Row) -> dict[OpKey, OpConfig]:
        """A row as configurations of ops."""
        return {key: each[at] for key, each, at in zip(self._keys, self._alternatives, row, strict=True)}

    def deviations(self, rows: Rows) -> Vector:
        """[m, n], of outputs."""
        return sum(
            (each[at] for each, at in zip(self._deviations, rows.T, strict=True)), start=np.zeros((len(rows), 1))
        )

    def costs(self, rows: Rows) -> Vector:
        """[m], as shares of what the widest model costs."""
        return 1 + _total(self._costs, rows)

    def excess(self, rows: Rows) -> Vector:
        """[m], by what share of itself each budget is exceeded, added up, as far as what ops add tells."""
        excess: Vector = np.zeros(len(rows))
        for name, most in self._search.goal.budgets.items():
            figure = self._search.of_float[name] + _total(self._figures[name], rows)
            excess += np.maximum(figure / most - 1 - _ROUNDING, 0.0)
        return excess

    def frontier(self) -> Rows:
        """Choices of little cost for their error, from wide to narrow, those within the budgets first sought.

        Each minimizes cost + weight error (Everett, 1963) for one of many weights, found by coordinate descent from the
        one before. Where there are budgets, what is under them also counts, at several prices.
        """
        prices = _PRICES if self._search.goal.budgets else _PRICES[:1]
        rows: Rows = np.unique([row for price in prices for row in self._descended(price)], axis=0)
        return rows

    def _descended(self, price: float) -> Iterator[Row]:
        priced = self._each(lambda key, config: self._search.priced(price, key, config))
        row = np.array([_most_accurate(each) for each in self._deviations])
        yield row.copy()
        for weight in _WEIGHTS:
            total = self.deviations(row[None])[0]
            for _ in range(_PASSES):
                before = row.copy()
                for op, deviations in enumerate(self._deviations):
                    others = total - deviations[row[op]]
                    errors = np.square(others + deviations).sum(1) / 2
                    row[op] = int(np.argmin(priced[op] + weight * errors))
                    total = others + deviations[row[op]]
                if (row == before).all():
                    break
            yield row.copy()

    def near(self, row: Row) -> Rows:
        """Those one or two steps of one op away, and those of one op a step narrower and another a step wider."""
        highest = np.array([len(each) - 1 for each in self._alternatives])
        steps = np.eye(len(row), dtype=np.int64)
        exchanges = (steps[:, None] - steps[None]).reshape(-1, len(row))
        rows = row + np.concatenate([steps, -steps, 2 * steps, -2 * steps, exchanges])
        near: Rows = rows[((rows >= 0) & (rows <= highest)).all(1) & (rows != row).any(1)]
        return near

    def _each(self, figure: Callable[[OpKey, OpConfig], float]) -> list[Vector]:
        """A figure of every alternative of every op."""
        pairs = zip(self._keys, self._alternatives, strict=True)
        return [np.array([figure(key, config) for config in each]) for key, each in pairs]


def _added(search: Search, name: str, key: OpKey, config: OpConfig) -> float:
    return search.op_objectives(key, config)[name]


def _most_accurate(deviations: Vector) -> int:
    """Of alternatives from cheap to dear; of equals the dearest."""
    return len(deviations) - 1 - int(np.argmin(np.square(deviations[::-1]).sum(1)))


def _total(figures: list[Vector], rows: Rows) -> Vector:
    return sum((each[at] for each, at in zip(figures, rows.T, strict=True)), start=np.zeros(len(rows)))
