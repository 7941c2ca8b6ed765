"""basic: what there is by default, all narrower, and the ops one by one a rung wider until it is good enough."""

from collections.abc import Generator, Sequence

from subbyte.spec import OpKey
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import (
    Chosen,
    Stepped,
    Walk,
    alike,
    descend,
    op_type_wise,
    squeezed,
    start,
    tried,
    wider_steps,
)
from subbyte.tuning.trial import Trial


@register_strategy("basic")
def basic(search: Search) -> Proposals:
    """The order of Intel Neural Compressor's strategy of that name, with a ladder in the place of one fallback.

    1. The configuration without tuning; and where schemes, granularities or algorithms are alternatives, every
       combination of them over the op types, at the same data types.
    2. From the best of these, all ops at once to the next narrower rung, for as long as that is good enough.
    3. Where it no longer is: each op alone one rung wider, from the last to the first.
    4. Then together, the one that gained most first, until it is good enough. If it is not with all of them, 3 and 4
       again from there: an op that fails at four bits goes to five, not to float.
    5. From what is good enough, ops one by one a rung narrower, the one that saves most first, for as long as it is.
    """
    among = {op.key: alike(search.space.alternatives[op.key]) for op in search.space.tunable}
    best, least = start(search), float("inf")
    combinations = list(op_type_wise(search.space, among))
    for chosen in combinations if len(combinations) > 1 else ():
        (trial,) = yield [search.candidate(chosen)]
        if trial.loss < least:
            best, least = chosen, trial.loss
    came = Stepped()
    chosen = yield from descend(search, best, came)
    while came.failed is not None:
        order = yield from one_by_one(search, chosen)
        if not order:
            return
        met, chosen = yield from accumulated(search, chosen, order)
        if met:
            break
    else:
        return

    def largest(at: Chosen, below: Chosen) -> OpKey:
        return max(below, key=lambda key: search.op_cost(key, at[key]) - search.op_cost(key, below[key]))

    yield from squeezed(search, chosen, largest)


def one_by_one(search: Search, chosen: Chosen) -> Walk:
    """Each op alone a rung wider, the last first; returns these rungs, that which leaves least loss first."""
    steps = dict(reversed(wider_steps(search, chosen).items()))
    trials = yield [search.candidate(chosen | {key: config}) for key, config in steps.items()]
    losses = {key: trial.loss for key, trial in zip(steps, trials, strict=True)}
    return {key: steps[key] for key in sorted(steps, key=lambda each: losses[each])}


def accumulated(
    search: Search, chosen: Chosen, order: Chosen
) -> Generator[Sequence[Candidate], Sequence[Trial], tuple[bool, Chosen]]:
    """These rungs, one more with each trial; returns whether one was good enough, and what was tried last."""
    for key, config in order.items():
        if not search.keeps_budgets(chosen | {key: config}):
            continue
        chosen = chosen | {key: config}
        trial = yield from tried(search, chosen)
        if trial.met:
            return True, chosen
    return False, chosen
