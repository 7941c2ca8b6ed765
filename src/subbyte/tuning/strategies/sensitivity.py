"""sensitivity: measure every op once, then try what promises to save most, as far as is known by then."""

from collections.abc import Sequence

from subbyte.tuning.choices import Choices, Row
from subbyte.tuning.expected_savings import ExpectedSavings
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import deviations, parts_of, recovered_parts
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("sensitivity")
def sensitivity(search: Search) -> Proposals:
    """Try the configuration with the largest expected saving, given measured deviations of each op.

    First, measure on calibration data how the outputs deviate from the float outputs with only one op's weight
    quantized, and with only its inputs quantized, for each data type. This needs no trials and no labels. Alternatives
    that are narrower than another one and save nothing are not measured. The deviations of the ops add up to the
    deviation of a configuration. If there are recovery methods, `recovered_parts` estimates the deviations after
    recovery.

    Each trial is the configuration with the largest expected saving: how much cheaper it is than the best so far, times
    the probability that its loss is tolerable, given the trials so far (`LossModel`). Candidates are the configurations
    of least cost for their deviation. A local search then changes one op or two ops at a time, first up to twice the
    deviation that was good enough so far. Plain and recovered configurations have separate deviations and losses. The
    search ends when no configuration has an expected saving that is worth a trial.
    """
    among = {op.key: search.useful(op.key) for op in search.space.tunable}
    measured = parts_of(search, among)
    ways = [ExpectedSavings(search, Choices(search, deviations(measured, among)))]
    if search.recipes:
        recovered = deviations(recovered_parts(search, measured), among)
        ways.insert(0, ExpectedSavings(search, Choices(search, recovered), recovered=True))
    while (found := _largest_savings(ways, search.workers)) is not None:
        way, rows = found
        trials = yield [way.candidate(row) for row in rows]
        for row, trial in zip(rows, trials, strict=True):
            way.learn(row, trial.loss, met=trial.met)
            for other in (each for each in ways if each is not way):
                other.learn_from(way, row, trial.loss)


def _largest_savings(ways: Sequence[ExpectedSavings], count: int) -> tuple[ExpectedSavings, list[Row]] | None:
    """Return the choices with the largest expected savings, all plain or all recovered."""
    for way in sorted(ways, key=ExpectedSavings.most, reverse=True):
        if rows := way.best(count):
            return way, rows
    return None
