"""What several strategies do: walk down and up the ladders of all ops."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from subbyte.spec import OpConfig, OpInfo, OpKey
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.ladder import bits
from subbyte.tuning.search import Search
from subbyte.tuning.space import TuningSpace
from subbyte.tuning.trial import Trial

Chosen = dict[OpKey, OpConfig]
Walk = Generator[Sequence[Candidate], Sequence[Trial], Chosen]


def start(search: Search) -> Chosen:
    """What every op gets without tuning."""
    return {op.key: search.space.alternatives[op.key][0] for op in search.space.tunable}


def model_wise(space: TuningSpace) -> Iterator[Chosen]:
    """One alternative for all ops that have it, the others as they are without tuning; once for each alternative."""
    keys = [op.key for op in space.tunable]
    every = dict.fromkeys(config for key in keys for config in space.alternatives[key])
    for config in every:
        yield {key: config if config in space.alternatives[key] else space.alternatives[key][0] for key in keys}


def op_type_wise(space: TuningSpace, among: Mapping[OpKey, Sequence[OpConfig]] | None = None) -> Iterator[Chosen]:
    """One alternative for all ops of a type: every combination over the types.

    Args:
        space: that is searched.
        among: the alternatives of each op that are looked at; all, where left out.
    """
    chosen_from = space.alternatives if among is None else among
    by_type: dict[str, list[OpInfo]] = {}
    for op in space.tunable:
        by_type.setdefault(op.type, []).append(op)
    choices = [list(dict.fromkeys(each for op in ops for each in chosen_from[op.key])) for ops in by_type.values()]
    for configs in product(*choices):
        yield {
            op.key: config if config in chosen_from[op.key] else chosen_from[op.key][0]
            for config, ops in zip(configs, by_type.values(), strict=True)
            for op in ops
        }


def op_wise(space: TuningSpace) -> Iterator[Chosen]:
    """Every combination over the ops."""
    keys = [op.key for op in space.tunable]
    for configs in product(*(space.alternatives[key] for key in keys)):
        yield dict(zip(keys, configs, strict=True))


def alike(configs: Sequence[OpConfig]) -> list[OpConfig]:
    """Those of the data types of the first: they differ in scheme, granularity and algorithm alone."""
    return [each for each in configs if _types(each) == _types(configs[0])]


def _types(config: OpConfig) -> tuple[object, ...]:
    return tuple(None if spec is None else spec.dtype for spec in (config.weight, config.activation))


def wider(search: Search, key: OpKey, config: OpConfig) -> OpConfig | None:
    """The next rung of an op; None on the widest."""
    ladder = search.ladder(key)
    if config in ladder:
        return next(iter(ladder[ladder.index(config) + 1 :]), None)
    above = [each for each in ladder if _is_above(search, key, each, config)]
    return above[0] if above else None


def narrower(search: Search, key: OpKey, config: OpConfig) -> OpConfig | None:
    """The rung below; None on the narrowest."""
    ladder = search.ladder(key)
    if config in ladder:
        return ladder[ladder.index(config) - 1] if config != ladder[0] else None
    below = [each for each in ladder if _is_above(search, key, config, each)]
    return below[-1] if below else None


def _is_above(search: Search, key: OpKey, one: OpConfig, other: OpConfig) -> bool:
    widths = [(bits(each.weight), bits(each.activation)) for each in (one, other)]
    return search.op_cost(key, one) > search.op_cost(key, other) or widths[0] > widths[1]


def tried(search: Search, chosen: Chosen) -> Generator[Sequence[Candidate], Sequence[Trial], Trial]:
    """Try a choice; where it loses too much, the same with the recovery methods that are asked for."""
    (trial,) = yield from all_tried(search, [chosen])
    return trial


def all_tried(
    search: Search, choices: Sequence[Chosen]
) -> Generator[Sequence[Candidate], Sequence[Trial], list[Trial]]:
    """The same of several side by side."""
    trials = list((yield [search.candidate(chosen) for chosen in choices]))
    lossy = [index for index, trial in enumerate(trials) if search.recipes and not search.is_tolerable(trial)]
    if lossy:
        recovered = yield [search.candidate(choices[index], recovered=True) for index in lossy]
        for index, trial in zip(lossy, recovered, strict=True):
            trials[index] = trial
    return trials


@dataclass
class Stepped:
    """How far a walk came.

    Args:
        met: the cheapest choice that was good enough; None if none was.
        failed: the first that was not; None if none was.
    """

    met: Chosen | None = None
    failed: Chosen | None = None


def wider_steps(search: Search, chosen: Chosen) -> Chosen:
    """For each op the next rung, where the budgets are kept with that one step."""
    above = {key: config for key in chosen if (config := wider(search, key, chosen[key])) is not None}
    return {key: config for key, config in above.items() if search.keeps_budgets(chosen | {key: config})}


def lowered(search: Search, chosen: Chosen) -> Chosen:
    """All ops at once one rung down, and as many more as it takes to keep the budgets."""
    below = {key: narrower(search, key, config) or config for key, config in chosen.items()}
    return below if below == chosen or search.keeps_budgets(below) else lowered(search, below)


def narrowest(search: Search) -> Chosen:
    """The first rung of every op, which is float where that alone keeps a budget: a machine may be fastest in it."""
    return {op.key: search.ladder(op.key)[0] for op in search.space.tunable}


def drawn(search: Search, generator: Random) -> Chosen:
    """Every op's rung by chance, each with the same; then lowered until the budgets are kept."""
    rungs = {op.key: generator.choice(search.ladder(op.key)) for op in search.space.tunable}
    return lowered_by_chance(search, rungs, generator)


def lowered_by_chance(search: Search, chosen: Chosen, generator: Random) -> Chosen:
    """Ops drawn by chance go a rung down until the budgets are kept, or no op can go further."""
    while not search.keeps_budgets(chosen):
        below = {key: config for key in chosen if (config := narrower(search, key, chosen[key])) is not None}
        if not below:
            break
        key = generator.choice(list(below))
        chosen = chosen | {key: below[key]}
    return chosen


def descend(search: Search, chosen: Chosen, came: Stepped) -> Walk:
    """From a choice, all ops at once one rung down for as long as the loss stays tolerable; returns the last tried.

    Choices that exceed a budget are passed over, without a trial.
    """
    if not search.keeps_budgets(chosen):
        chosen = lowered(search, chosen)
    if not search.keeps_budgets(chosen):
        chosen = narrowest(search)
    while True:
        trial = yield from tried(search, chosen)
        if not trial.met:
            came.failed = chosen
            return chosen
        came.met = chosen
        below = lowered(search, chosen)
        if below == chosen or not search.keeps_budgets(below):
            return chosen
        chosen = below


def squeezed(search: Search, chosen: Chosen, pick: Callable[[Chosen, Chosen], OpKey]) -> Walk:
    """From a choice that is good enough, op by op a rung down for as long as it stays so; what is too much is undone.

    Args:
        search: what is wanted.
        chosen: where to begin.
        pick: from a choice and the steps that there are, by op, to the op that is next.

    Returns:
        the choice from which no op can go further.
    """
    stuck: set[OpKey] = set()
    while True:
        below = {
            key: config
            for key in chosen
            if key not in stuck
            and (config := narrower(search, key, chosen[key])) is not None
            and search.keeps_budgets(chosen | {key: config})
        }
        if not below:
            return chosen
        key = pick(chosen, below)
        trial = yield from tried(search, chosen | {key: below[key]})
        if trial.met:
            chosen = chosen | {key: below[key]}
        else:
            stuck.add(key)
