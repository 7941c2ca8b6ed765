"""The cheapest models for every error that may be allowed: a path from the widest to the narrowest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import Errors
from subbyte.tuning.strategies.steps import Chosen, all_tried, tried

_PRICES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # of what is under a budget

At = dict[OpKey, int]  # which rung of its hull each op is on


def traversed(search: Search, errors: Errors) -> Proposals:
    """Bisect the path for the cheapest model that is good enough, then try single steps from there.

    Errors of several ops add up, as long as they are small and independent. So the cheapest model for an error is found
    op by op: minimize cost + lambda error (Everett, 1963); as lambda falls, one op after another takes a narrower rung.
    These steps, the most saved for its error first, are the path. Bisection takes a trial for each halving; several
    workers try as many points in each round, evenly spaced.

    The steps that are tried then are those that were not taken, the most promising first. One that fails harms more
    than its error said, so the errors of that op's further steps are doubled.

    Of a path only models within all budgets are looked at. Where the most accurate of these is not good enough, what is
    under a budget gets a price, and then a higher one: its savings count beside those of the cost, so that the path
    comes within the budgets with less error.

    Args:
        search: what is wanted.
        errors: that each alternative of each op adds.
    """
    for hulls, path in _paths(search, errors):
        low, high = 0, len(path)  # beyond the last there is nothing
        if search.goal.budgets:  # the first is not as wide as can be
            trial = yield from tried(search, _chosen(hulls, path[0]))
            if not trial.met:
                continue
        while high - low > 1:
            middles = _between(low, high, search.workers)
            trials = yield from all_tried(search, [_chosen(hulls, path[middle]) for middle in middles])
            for middle, trial in zip(middles, trials, strict=True):
                if not trial.met:
                    high = middle
                    break
                low = middle
        if low == 0:  # which nobody has tried yet, where there are no budgets
            yield from tried(search, _chosen(hulls, path[0]))
        yield from _refined(search, hulls, path[low])
        return


def _between(low: int, high: int, count: int) -> list[int]:
    """Whole numbers between two, so many or all, evenly spaced."""
    parts = min(count, high - low - 1) + 1
    return [low + (high - low) * part // parts for part in range(1, parts)]


@dataclass(frozen=True)
class Rung:
    """An alternative of an op: what it costs, and what error it adds."""

    config: OpConfig
    cost: float
    error: float


Hulls = Mapping[OpKey, Sequence[Rung]]


def _paths(search: Search, errors: Errors) -> Iterator[tuple[Hulls, list[At]]]:
    """Paths within the budgets, each of which begins with a more accurate model than the one before.

    There is one where there are no budgets. If none is within them, the narrowest model is all there is of the last.
    """
    least, found = float("inf"), False
    for price in _PRICES if search.goal.budgets else _PRICES[:1]:
        hulls = {op.key: _hull(search, op.key, errors[op.key], price) for op in search.space.tunable}
        whole = list(_path(hulls))
        path = [at for at in whole if search.keeps_budgets(_chosen(hulls, at))]
        error = sum(hulls[key][index].error for key, index in path[0].items()) if path else least
        if error < least:
            least, found = error, True
            yield hulls, path
    if not found:
        yield hulls, whole[-1:]


def _hull(search: Search, key: OpKey, errors: Mapping[OpConfig, float], price: float) -> list[Rung]:
    """The rungs that some lambda takes, from wide to narrow: the lower convex hull of cost against error."""
    rungs = [Rung(config, search.priced(price, key, config), error) for config, error in errors.items()]
    hull: list[Rung] = []
    for rung in sorted(rungs, key=lambda each: (each.error, each.cost)):
        if hull and rung.cost >= hull[-1].cost:
            continue
        while len(hull) > 1 and _saving(hull[-2], hull[-1]) <= _saving(hull[-1], rung):
            hull.pop()
        hull.append(rung)
    return hull


def _saving(wide: Rung, narrow: Rung) -> float:
    """What is saved for each unit of error."""
    return (wide.cost - narrow.cost) / max(narrow.error - wide.error, 1e-30)


def _path(hulls: Hulls) -> Iterator[At]:
    """From the widest model to the narrowest: each adds the step that saves the most for its error."""
    steps = [
        (_saving(rungs[index], rungs[index + 1]), key)
        for key, rungs in hulls.items()
        for index in range(len(rungs) - 1)
    ]
    at = dict.fromkeys(hulls, 0)
    yield dict(at)
    for _, key in sorted(steps, key=lambda step: -step[0]):
        at[key] += 1
        yield dict(at)


def _chosen(hulls: Hulls, at: At) -> Chosen:
    return {key: hulls[key][index].config for key, index in at.items()}


def _refined(search: Search, hulls: Hulls, at: At) -> Proposals:
    """As many steps side by side as there are workers; of those that are good enough the most promising is taken."""
    doubts = dict.fromkeys(hulls, 1.0)
    failed: set[tuple[OpKey, int]] = set()
    while True:
        steps = {
            key: _saving(rungs[at[key]], rungs[at[key] + 1]) / doubts[key]
            for key, rungs in hulls.items()
            if at[key] + 1 < len(rungs) and (key, at[key] + 1) not in failed
        }
        nearest = {key: at | {key: at[key] + 1} for key in sorted(steps, key=lambda each: -steps[each])}
        kept = [key for key, each in nearest.items() if search.keeps_budgets(_chosen(hulls, each))][: search.workers]
        if not kept:
            return
        trials = yield from all_tried(search, [_chosen(hulls, nearest[key]) for key in kept])
        met = [key for key, trial in zip(kept, trials, strict=True) if trial.met]
        for key in set(kept) - set(met):
            failed.add((key, at[key] + 1))
            doubts[key] *= 2
        if met:
            at = nearest[met[0]]
