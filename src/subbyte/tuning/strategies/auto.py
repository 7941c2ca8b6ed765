"""auto: what was measured decides first, then what was learned from the trials."""

from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.samplers import tpe
from subbyte.tuning.strategies.sensitivity import sensitivity


@register_strategy("auto")
def auto(search: Search) -> Proposals:
    """`sensitivity` until it has nothing more to propose, then `tpe` for as long as the search goes on."""
    yield from sensitivity(search)
    yield from tpe(search)
