"""sensitivity: measure every op once, then try what promises to save most, as far as is known by then."""

from subbyte.tuning.choices import Choices
from subbyte.tuning.promise import Promises
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import deviations_of
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import all_tried


@register_strategy("sensitivity")
def sensitivity(search: Search) -> Proposals:
    """Trade every op's error against what it costs.

    How outputs on calibration data deviate from float's is measured with the weight of each op alone quantized, in each
    data type, and with its inputs alone quantized: no trials, and no labels. An alternative that is narrower than
    another and saves nothing is not measured. Deviations add up to those of a whole configuration.

    Each trial is then the configuration with the largest expected saving: what it costs less than the best so far,
    times the chance that its loss is tolerable, as the trials before say (`LossModel`). It is sought among those of
    least cost for their error, and from there by steps of one op and exchanges of two, first up to twice the
    error that was good enough so far. The search ends when no configuration promises to save anything worth a trial.
    """
    among = {op.key: search.useful(op.key) for op in search.space.tunable}
    choices = Choices(search, deviations_of(search, among))
    promises = Promises(search, choices)
    while rows := promises.best(search.workers):
        trials = yield from all_tried(search, [choices.chosen(row) for row in rows])
        for row, trial in zip(rows, trials, strict=True):
            promises.learn(row, trial.loss, met=trial.met)
