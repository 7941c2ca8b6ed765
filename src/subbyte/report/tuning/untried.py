"""Which alternatives of ops a search left out because they save nothing, and which it did not come to."""

from collections.abc import Sequence
from dataclasses import dataclass

from subbyte.report.tuning.words import amount, objective_text
from subbyte.spec import OpConfig, OpKey, TensorSpec
from subbyte.tuning import LeftOut, TuneResult, width

_SHOWN = 6  # precisions of an op that are named
_WHY = {
    "strategy": "the strategy had nothing more to propose",
    "max_trials": "max_trials was reached",
    "timeout": "the time was over",
    "good_enough": "a trial was good enough",
}


@dataclass(frozen=True)
class Group:
    """Alternatives that several ops have left out for the same reason."""

    alternatives: tuple[str, ...]
    reason: str
    ops: tuple[str, ...]


def why_it_stopped(result: TuneResult) -> str:
    """Return why there were no further trials, in words."""
    return _WHY[result.stopped_because]


def precision(config: OpConfig) -> str:
    """Return the types of an alternative: `int4 weight, uint8 input`."""
    if config.is_float:
        return "fp32" if config.half is None else str(config.half.name)
    return ", ".join(_types(config))


def _types(config: OpConfig) -> list[str]:
    named: tuple[tuple[TensorSpec | None, str], ...] = ((config.weight, "weight"), (config.activation, "input"))
    return [f"{spec.dtype.name} {what}" for spec, what in named if spec is not None]


def left_out_groups(result: TuneResult) -> list[Group]:
    """Return what was left out, alternatives with the same reason in the same ops together."""
    by_alternative: dict[tuple[str, str], list[str]] = {}
    for (name, _), every in result.left_out.items():
        for config, why in every.items():
            ops = by_alternative.setdefault(_alternative_and_reason(result, config, why), [])
            ops += [] if name in ops else [name]
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (alternative, reason), ops in by_alternative.items():
        groups.setdefault((reason, tuple(ops)), []).append(alternative)
    return [Group(tuple(alternatives), reason, ops) for (reason, ops), alternatives in groups.items()]


def _alternative_and_reason(result: TuneResult, config: OpConfig, why: LeftOut) -> tuple[str, str]:
    beside = precision(why.beside)
    if not _is_as_wide(why.beside, config):
        return precision(config), f"neither as wide as {beside} nor narrower"
    if width(why.beside) == width(config):
        return str(config), f"as wide as {why.beside}, and no cheaper"
    if not why.spread:
        return precision(config), f"narrower than {beside}, and saves nothing"
    weights = result.wanted.goal.weights
    single = next(iter(weights)) if len(weights) == 1 and not result.wanted.goal.budgets else None
    more, spread = (objective_text(single, each) if single else amount(each) for each in (why.more, why.spread))
    return f"{precision(config)} ({more} more, standard error {spread})", f"narrower than {beside}, and costs more"


def _is_as_wide(config: OpConfig, other: OpConfig) -> bool:
    return all(one >= two for one, two in zip(width(config)[1:], width(other)[1:], strict=True))


def untried_text(result: TuneResult) -> str:
    """Return which ops have alternatives that no trial had, in a sentence; empty if there are none."""
    untried = result.untried
    if result.stopped_because == "strategy" or not untried:
        return ""
    count = sum(map(len, untried.values()))
    float_ops = [key[0] for key in untried if note_of(result, key)]
    said = f"not tried: {count:,} alternatives of {len(untried)} ops, which the report lists"
    return said + (f"; fp32 without a trial of all the others: {', '.join(float_ops)}" if float_ops else "")


def untried_of(result: TuneResult, key: OpKey) -> str:
    """Return the types of an op's alternatives that no trial had, the widest first."""
    return _named(result.untried.get(key, []))


def note_of(result: TuneResult, key: OpKey) -> str:
    """Return what must be said of an op that stays float: which of its other alternatives no trial had, and why."""
    if not result.best.config.op.get(key, OpConfig()).is_unchanged:
        return ""
    tried = {trial.config.op.get(key, OpConfig()) for trial in result.trials}
    known = {precision(config) for config in [*tried, *result.untried.get(key, [])]}
    dearer = [config for config in result.left_out.get(key, {}) if precision(config) not in known]
    left = [config for config in result.untried.get(key, []) if not config.is_unchanged]
    said = [f"left out because they save nothing: {_named(dearer)}"] if dearer else []
    said += [f"not tried, as {why_it_stopped(result)}: {_named(left)}"] if left else []
    return "; ".join(said)


def _named(configs: Sequence[OpConfig]) -> str:
    names = list(dict.fromkeys(precision(each) for each in sorted(configs, key=width, reverse=True)))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more
