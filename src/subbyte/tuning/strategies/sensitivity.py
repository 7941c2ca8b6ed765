"""sensitivity: measure every op once, then try what promises to save most, as far as is known by then."""

from collections.abc import Sequence

from subbyte.tuning.choices import Choices, Row
from subbyte.tuning.promise import Promises
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import deviations, parts_of, recovered_parts
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("sensitivity")
def sensitivity(search: Search) -> Proposals:
    """Trade every op's error against what it costs.

    How outputs on calibration data deviate from float's is measured with the weight of each op alone quantized, in each
    data type, and with its inputs alone quantized: no trials, and no labels. An alternative that is narrower than
    another and saves nothing is not measured. Deviations add up to those of a whole configuration. Where there are
    recipes, one quick recovery for each data type of weights tells which share of a deviation is left.

    Each trial is then the configuration with the largest expected saving: what it costs less than the best so far,
    times the chance that its loss is tolerable, as the trials before say (`LossModel`). It is sought among those of
    least cost for their error, and from there by steps of one op and exchanges of two, first up to twice the
    error that was good enough so far. Whether it is recovered is part of the choice: plain and recovered ones have
    deviations and losses of their own. The search ends when no configuration promises to save anything worth a trial.
    """
    among = {op.key: search.useful(op.key) for op in search.space.tunable}
    measured = parts_of(search, among)
    ways = [Promises(search, Choices(search, deviations(measured, among)))]
    if search.recipes:
        recovered = deviations(recovered_parts(search, measured), among)
        ways.insert(0, Promises(search, Choices(search, recovered), recovered=True))
    while (found := _most_promising(ways, search.workers)) is not None:
        way, rows = found
        trials = yield [way.candidate(row) for row in rows]
        for row, trial in zip(rows, trials, strict=True):
            way.learn(row, trial.loss, met=trial.met)
            for other in (each for each in ways if each is not way):
                other.hear(way, row, trial.loss)


def _most_promising(ways: Sequence[Promises], count: int) -> tuple[Promises, list[Row]] | None:
    """Of the way that promises most."""
    for way in sorted(ways, key=Promises.most, reverse=True):
        if rows := way.best(count):
            return way, rows
    return None
