"""exhaustive: every configuration there is."""

from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import op_wise


@register_strategy("exhaustive")
def exhaustive(search: Search) -> Proposals:
    """Try every combination of the ops' alternatives, in the order in which they are listed."""
    for chosen in op_wise(search.space):
        yield [search.candidate(chosen)]
