"""exhaustive: every configuration there is."""

from collections.abc import Iterator

from subbyte.tuning.budget import cheapest
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import Chosen, tried

_DEAD_ENDS = 10_000  # in a row, after which budgets count as ones that cannot be kept together


@register_strategy("exhaustive")
def exhaustive(search: Search) -> Proposals:
    """Try every combination of the ops' alternatives that keeps the budgets, in the order in which they are listed."""
    ends = 0
    for chosen in _combinations(search, {}, [cheapest(search, name) for name in search.goal.budgets]):
        ends = ends + 1 if chosen is None else 0
        if ends == _DEAD_ENDS:
            return
        if chosen is not None:
            yield from tried(search, chosen)


def _combinations(search: Search, chosen: Chosen, least: list[Chosen]) -> Iterator[Chosen | None]:
    """All that begin so; None for each beginning from which no budget, or not every one, can be kept."""
    if not all(search.keeps_budget(name, rest | chosen) for name, rest in zip(search.goal.budgets, least, strict=True)):
        yield None
        return
    if len(chosen) == len(search.space.tunable):
        yield chosen
        return
    key = search.space.tunable[len(chosen)].key
    for config in search.space.alternatives[key]:
        yield from _combinations(search, chosen | {key: config}, least)
