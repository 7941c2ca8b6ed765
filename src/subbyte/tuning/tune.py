"""From an adaptor, a request and an evaluation to the best model that is good enough."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from subbyte.adaptor import TunableModel
from subbyte.algorithms import RecoveryMethod
from subbyte.errors import TuningError
from subbyte.tuning.accuracy import METRIC, Accuracy
from subbyte.tuning.candidate import Candidate, Encoding
from subbyte.tuning.distributed import Distribution, Local
from subbyte.tuning.evaluation import Evaluate, Evaluation, evaluate_float
from subbyte.tuning.objective import Goal, objective_of
from subbyte.tuning.result import TuneResult, remember
from subbyte.tuning.run import Limits, Loop, Watch
from subbyte.tuning.search import Search
from subbyte.tuning.space import TuningSpace
from subbyte.tuning.storage import DEFAULT_FILE
from subbyte.tuning.strategies import strategy_of
from subbyte.tuning.study import Study
from subbyte.tuning.trial import best_of


@dataclass(frozen=True)
class Task:
    """What is asked of a search.

    Args:
        evaluate: from a model to a metric, or to several by name.
        accuracy: what may be lost.
        goal: what to make small.
        strategy: by name.
        options: of the strategy.
        recipes: recovery methods that candidates may ask for.
        seed: of all that is random.
        loss_fn: for strategies that need gradients.
        storage: of the study.
        study: its name in the storage; None takes up the newest that was interrupted, or begins one.
        distribution: who tries the candidates.
    """

    evaluate: Evaluate
    accuracy: Accuracy
    goal: Goal
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    recipes: Sequence[RecoveryMethod] = ()
    seed: int = 0
    loss_fn: Callable[..., Any] | None = None
    storage: Any = DEFAULT_FILE
    study: str | None = None
    distribution: Distribution = field(default_factory=Local)


def search_best(
    float_model: Any, model: TunableModel, task: Task, limits: Limits, watch: Watch = lambda trials: None
) -> TuneResult:
    """Search, and make the best model.

    Args:
        float_model: whose metrics are the baseline.
        model: that trials run on.
        task: what is asked.
        limits: when to end.
        watch: told of all trials after each.

    Raises:
        TuningError: there is nothing to tune, or the study is of another search.
        Exception: what the evaluation of the float model raised, three times in a row.
    """
    strategy = strategy_of(task.strategy)
    space = TuningSpace(model.ops, model.alternatives)
    if task.distribution.needs_name and task.study is None:
        raise TuningError("processes that share a search need a study of the same name: give study=, and storage=")
    study = Study(task.storage, _identity(model, task), task.study)
    baseline = study.baseline
    if baseline is None:
        baseline = study.keep_baseline(evaluate_float(task.evaluate, float_model))
    task.accuracy.check(baseline)
    of_float = {name: objective_of(name).of(model, space.widest()) for name in task.goal.names}
    search = Search(
        space, model, task.goal, task.accuracy, of_float,
        recipes=task.recipes, seed=task.seed, options=task.options, loss_fn=task.loss_fn,
    )  # fmt: skip
    with closing(task.distribution.executor(Evaluation(search, task.evaluate, baseline), study)) as executor:
        loop = Loop(search, baseline, study, executor, limits, watch)
        loop.run(strategy(search))
    study.end()
    best = best_of(loop.trials) or loop.trials[0]
    chosen = Candidate(search.space.widest() if best.failed else best.config, best.recovered)
    converted = search.converted(chosen)
    shown = baseline[METRIC] if set(baseline) == {METRIC} else baseline
    result = TuneResult(converted, best.met, shown, best, loop.trials, search.errors, study.name)
    remember(result)
    return result


def _identity(model: TunableModel, task: Task) -> dict[str, str]:
    return {
        **model.identity,
        "alternatives": Encoding(model.alternatives).digest,
        "evaluation": _digest_of_code(task.evaluate),
    }


def _digest_of_code(function: Any) -> str:
    """Of what a function is written as; not of what it refers to."""
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None:
        return ""
    constants = [constant for constant in code.co_consts if isinstance(constant, str | int | float | bool)]
    return hashlib.sha256(code.co_code + repr((constants, code.co_names)).encode()).hexdigest()
