"""auto: what was measured decides first, then what was learned from the trials."""

from typing import Any

from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.samplers import tpe
from subbyte.tuning.strategies.sensitivity import sensitivity


@register_strategy("auto")
def auto(search: Search, **options: Any) -> Proposals:
    """`sensitivity` until it has nothing more to propose, then `tpe`, with its options, for as long as there is."""
    return _both(sensitivity(search), tpe(search, **options))


def _both(first: Proposals, then: Proposals) -> Proposals:
    yield from first
    yield from then
