"""mse_v2: as mse, but every step is chosen by what it does to the model's output as it is then."""

from functools import partial

from subbyte.spec import OpKey
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import Chosen, Stepped, descend, squeezed, start, tried, wider_steps


@register_strategy("mse_v2")
def mse_v2(search: Search) -> Proposals:
    """All ops narrower until that is too much; then the step that mends the output most, one after another.

    Errors of ops that depend on each other do not add up, so before each step the output's error is measured with every
    op a rung wider, the others as they are. Once it is good enough, ops are narrowed again, the one that harms least
    first, for as long as it stays so.
    """
    came = Stepped()
    chosen = yield from descend(search, start(search), came)
    if came.failed is None:
        return
    met = False
    while not met:
        above = wider_steps(search, chosen)
        if not above:
            return
        best = _least(search, chosen, above)
        chosen = chosen | {best: above[best]}
        trial = yield from tried(search, chosen)
        met = trial.met
    yield from squeezed(search, chosen, partial(_least, search))


def _least(search: Search, chosen: Chosen, steps: Chosen) -> OpKey:
    """The step that leaves the least error."""
    errors = {key: search.model.error(search.space.config(chosen | {key: config})) for key, config in steps.items()}
    return min(errors, key=lambda key: errors[key].squared)
