"""exhaustive: every configuration there is."""

from itertools import product

from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("exhaustive")
def exhaustive(search: Search) -> Proposals:
    """Try every combination of the ops' alternatives, in the order in which they are listed."""
    keys = [op.key for op in search.space.tunable]
    for chosen in product(*(search.space.alternatives[key] for key in keys)):
        yield [search.candidate(dict(zip(keys, chosen, strict=True)))]
