"""mse: the ops that add most error are given wider rungs first."""

from subbyte.spec import OpKey
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import errors_of
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import Chosen, Stepped, descend, squeezed, start, tried, wider_steps


@register_strategy("mse")
def mse(search: Search) -> Proposals:
    """All ops narrower until that is too much; then the op with the largest error a rung wider, one after another.

    The error is that of the model's output with the op alone quantized, as it is at that moment (the strategy of that
    name in Intel Neural Compressor ranks by the op's own output). Once it is good enough, ops are narrowed again, the
    one whose error grows least first, for as long as it stays so.
    """
    among = {key: [*dict.fromkeys((first, *search.ladder(key)))] for key, first in start(search).items()}
    errors = errors_of(search, among)
    came = Stepped()
    chosen = yield from descend(search, start(search), came)
    while came.failed is not None:
        above = wider_steps(search, chosen)
        if not above:
            return
        worst = max(above, key=lambda key: errors[key][chosen[key]])
        chosen = chosen | {worst: above[worst]}
        trial = yield from tried(search, chosen)
        if trial.met:
            break
    else:
        return

    def least(at: Chosen, below: Chosen) -> OpKey:
        return min(below, key=lambda key: errors[key][below[key]] - errors[key][at[key]])

    yield from squeezed(search, chosen, least)
