"""random: every op's alternative drawn by itself."""

import random as randomness

from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("random")
def random(search: Search) -> Proposals:
    """Draw configurations for as long as the search goes on, each op's alternative with the same chance."""
    generator = randomness.Random(search.seed)
    while True:
        yield [search.candidate({op.key: generator.choice(search.ladder(op.key)) for op in search.space.tunable})]
