"""random: every op's alternative drawn by itself."""

import random as randomness

from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import drawn, tried


@register_strategy("random")
def random(search: Search) -> Proposals:
    """Draw configurations for as long as the search goes on, each op's alternative with the same chance.

    Where that exceeds a budget, ops drawn by chance go a rung down, one after another, until it is kept.
    """
    generator = randomness.Random(search.seed)
    while True:
        yield from tried(search, drawn(search, generator))
