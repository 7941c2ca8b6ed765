"""tpe and bayesian: Optuna's samplers over the rungs of the ops."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from subbyte.errors import TuningError
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.strategies.registry import register_strategy
from subbyte.tuning.strategies.steps import Chosen, drawn, lowered_by_chance, tried

_DRAWS = 100  # for a configuration that is new
_EXCESS = 10.0  # what a model that is not good enough costs more, in shares of the float model, for each tolerable loss


@register_strategy("tpe")
def tpe(search: Search, **options: Any) -> Proposals:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., 2011; multivariate).

    Args:
        search: what is wanted.
        options: of Optuna's TPESampler.

    Raises:
        TuningError: it has no such option.
    """
    return _sampled(search, _sampler(TPESampler, search, {"multivariate": True} | options))


@register_strategy("bayesian")
def bayesian(search: Search, **options: Any) -> Proposals:
    """Optuna's Gaussian process with the logarithm of the expected improvement.

    Args:
        search: what is wanted.
        options: of Optuna's GPSampler.

    Raises:
        TuningError: it has no such option.
    """
    return _sampled(search, _sampler(GPSampler, search, options))


def _sampler(kind: Callable[..., BaseSampler], search: Search, options: Mapping[str, Any]) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return kind(**{"seed": search.seed, **options})
        except (TypeError, ValueError) as error:
            raise TuningError(f"strategy_options, which Optuna's sampler takes: {error}") from error


def _sampled(search: Search, sampler: BaseSampler) -> Proposals:
    """Each op's rung is a whole number; a model is worth its cost, and more for what it loses too much.

    What exceeds a budget is not tried: ops drawn by chance go a rung down until it is kept. The sampler is told what
    came of that, and more in proportion to the excess. What has been tried is not tried again: another is drawn in its
    place, and where chance finds none the search ends.
    """
    ladders = {op.key: search.ladder(op.key) for op in search.space.tunable}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(sampler=sampler)
    span = max(search.cost(search.space.widest()), 1e-30)
    generator = Random(search.seed)
    known: list[Chosen] = []
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            try:
                asked = study.ask()
                rungs = {
                    key: ladder[asked.suggest_int(f"{key[0]} ({key[1]})", 0, len(ladder) - 1)]
                    for key, ladder in ladders.items()
                }
            except (TypeError, ValueError) as error:  # options are used now, not when the sampler is made
                raise TuningError(f"strategy_options, which Optuna's sampler takes: {error}") from error
        over = search.goal.excess(search.objectives(search.space.config(rungs)))
        chosen = _new(lowered_by_chance(search, rungs, generator), known, search, generator)
        if chosen is None:
            return
        known.append(chosen)
        trial = yield from tried(search, chosen)
        if trial.failed:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            continue
        excess = max(trial.loss - search.accuracy.max_loss, 0.0) / max(search.accuracy.max_loss, 1e-6)
        study.tell(asked, trial.cost / span + _EXCESS * (excess + over))


def _new(chosen: Chosen, known: Sequence[Chosen], search: Search, generator: Random) -> Chosen | None:
    """What a sampler chose, or by chance what nobody has tried; None where that is not found."""
    for _ in range(_DRAWS):
        if chosen not in known:
            return chosen
        chosen = drawn(search, generator)
    return None
