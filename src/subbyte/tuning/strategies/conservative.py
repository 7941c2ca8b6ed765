"""conservative: from the widest model down, keeping what is good enough."""

from collections.abc import Generator, Sequence

from subbyte.spec import OpInfo
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import Chosen, lowered, narrower, tried
from subbyte.tuning.trial import Trial


@register_strategy("conservative")
def conservative(search: Search) -> Proposals:
    """Narrow a type of op at a time, and where that loses too much its ops one by one; what loses too much is undone.

    As the strategy of that name in Intel Neural Compressor goes from float to int8, so does this from rung to rung,
    ops with a weight first. Every model on the way that is kept loses no more than is tolerable. Where the last of them
    exceeds a budget, all ops go down together until it is kept.
    """
    widest = search.space.widest().op
    chosen = {op.key: widest[op.key] for op in search.space.tunable}
    if search.keeps_budgets(chosen):
        yield [search.candidate(chosen)]
    stuck: set[tuple[str, str]] = set()
    moved = True
    while moved:
        moved = False
        for ops in _by_type(search):
            steps = {op.key: narrower(search, op.key, chosen[op.key]) for op in ops if op.key not in stuck}
            below = {key: config for key, config in steps.items() if config is not None}
            if not below:
                continue
            if (yield from _is_kept(search, chosen, below)):
                chosen, moved = chosen | below, True
                continue
            for key, config in below.items():
                if (yield from _is_kept(search, chosen, {key: config})):
                    chosen, moved = chosen | {key: config}, True
                else:
                    stuck.add(key)
    if not search.keeps_budgets(chosen):
        yield from tried(search, lowered(search, chosen))


def _is_kept(search: Search, chosen: Chosen, below: Chosen) -> Generator[Sequence[Candidate], Sequence[Trial], bool]:
    """Whether steps lose no more than is tolerable; those that break a budget that is kept are not tried."""
    if search.keeps_budgets(chosen) and not search.keeps_budgets(chosen | below):
        return False
    trial = yield from tried(search, chosen | below)
    return search.is_tolerable(trial)


def _by_type(search: Search) -> list[list[OpInfo]]:
    """The ops of each type, types with a weight first, then products, then the rest."""
    found: dict[str, list[OpInfo]] = {}
    for op in search.space.tunable:
        found.setdefault(op.type, []).append(op)
    order = {"weighted": 0, "matmul": 1, "other": 2}
    return sorted(found.values(), key=lambda ops: order[ops[0].role])
