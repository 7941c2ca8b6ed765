"""sensitivity: measure every op once, then solve for the cheapest model that loses as little as is allowed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import errors_of
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("sensitivity")
def sensitivity(search: Search) -> Proposals:
    """Trade every op's error against what it costs.

    1. The error of the model's outputs is measured with the weight of each op alone quantized, in each data type, and
       with its inputs alone quantized.
    2. Errors of several ops add up, as long as they are small and independent. So the cheapest model for an error is
       found op by op: minimize cost + lambda error (Everett, 1963); as lambda falls, one op after another takes a
       narrower rung. These steps, the most saved for its error first, lead from the widest model to the narrowest.
    3. Bisection finds how far on the path the loss stays tolerable, with a trial for each halving.
    4. From there single steps are tried that were not taken, the most promising first. A step that fails costs more
       than its error said, so the error of that step is doubled.
    """
    errors = errors_of(search)
    choices = {op.key: _hull(search, op.key, errors[op.key]) for op in search.space.tunable}
    path = list(_path(choices))
    low, high = 0, len(path)  # the first is as wide as can be; beyond the last there is nothing
    best: dict[OpKey, int] = path[0]
    while high - low > 1:
        middle = (low + high) // 2
        (trial,) = yield [_candidate(search, choices, path[middle])]
        if trial.met:
            low, best = middle, path[middle]
        else:
            high = middle
    yield from _refined(search, choices, best)


@dataclass(frozen=True)
class Rung:
    """An alternative of an op: what it costs, and what error it adds."""

    config: OpConfig
    cost: float
    error: float


def _hull(search: Search, key: OpKey, errors: Mapping[OpConfig, float]) -> list[Rung]:
    """The rungs that some lambda takes, from wide to narrow: the lower convex hull of cost against error."""
    rungs = [Rung(config, search.op_cost(key, config), error) for config, error in errors.items()]
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


def _path(choices: Mapping[OpKey, Sequence[Rung]]) -> Iterator[dict[OpKey, int]]:
    """From the widest model to the narrowest: each adds the step that saves the most for its error."""
    steps = [
        (_saving(rungs[index], rungs[index + 1]), key)
        for key, rungs in choices.items()
        for index in range(len(rungs) - 1)
    ]
    at = dict.fromkeys(choices, 0)
    yield dict(at)
    for _, key in sorted(steps, key=lambda step: -step[0]):
        at[key] += 1
        yield dict(at)


def _candidate(search: Search, choices: Mapping[OpKey, Sequence[Rung]], at: Mapping[OpKey, int]) -> Candidate:
    return search.candidate({key: choices[key][index].config for key, index in at.items()})


def _refined(search: Search, choices: Mapping[OpKey, Sequence[Rung]], best: Mapping[OpKey, int]) -> Proposals:
    at = dict(best)
    doubts = dict.fromkeys(choices, 1.0)
    failed: set[tuple[OpKey, int]] = set()
    while True:
        steps = {
            key: _saving(rungs[at[key]], rungs[at[key] + 1]) / doubts[key]
            for key, rungs in choices.items()
            if at[key] + 1 < len(rungs) and (key, at[key] + 1) not in failed
        }
        if not steps:
            return
        key = max(steps, key=lambda each: steps[each])
        tried = at | {key: at[key] + 1}
        (trial,) = yield [_candidate(search, choices, tried)]
        if trial.met:
            at = tried
        else:
            failed.add((key, tried[key]))
            doubts[key] *= 2
