"""From an adaptor, a request and an evaluation to the best model that is good enough."""

import hashlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from subbyte.adaptor import TunableModel
from subbyte.algorithms import RecoveryMethod
from subbyte.errors import TuningError
from subbyte.spec import TuneConfig
from subbyte.tuning.acceptance import Acceptance, EstimatedAcceptance, PairedAcceptance
from subbyte.tuning.accuracy import METRIC, Accuracy
from subbyte.tuning.budget import check_budgets
from subbyte.tuning.candidate import Candidate, Encoding
from subbyte.tuning.confirmation import Confirmation, confirmation_of
from subbyte.tuning.distributed import Distribution, Local
from subbyte.tuning.early_stopping import EarlyStopping, SequentialTest
from subbyte.tuning.evaluation import Evaluate, Evaluation, evaluate_float
from subbyte.tuning.measured import measure
from subbyte.tuning.objective import Goal, objective_of
from subbyte.tuning.recipes import DEFAULT_RECIPES, checked_recipes
from subbyte.tuning.result import TuneResult, Wanted, remember
from subbyte.tuning.run import Limits, Loop, Watch
from subbyte.tuning.search import Progress, Search
from subbyte.tuning.space import TuningSpace
from subbyte.tuning.storage import DEFAULT_FILE, displayed
from subbyte.tuning.strategies import begun
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
        recipes: recovery methods that candidates may ask for; None is `DEFAULT_RECIPES` where these can work.
        seed: of all that is random.
        loss_fn: for strategies that need gradients.
        storage: of the study.
        study: its name in the storage; None takes up the newest that was interrupted, or begins one.
        distribution: who tries the candidates.
        early_stopping: when an evaluation ends before its last sample; None is never.
        confirm: a second evaluation, on other data, of the finalists.
    """

    evaluate: Evaluate
    accuracy: Accuracy
    goal: Goal
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    recipes: Sequence[RecoveryMethod] | None = ()
    seed: int = 0
    loss_fn: Callable[..., Any] | None = None
    storage: Any = DEFAULT_FILE
    study: str | None = None
    distribution: Distribution = field(default_factory=Local)
    early_stopping: EarlyStopping | None = None
    confirm: Evaluate | None = None


def search_best(
    float_model: Any, model: TunableModel, task: Task, limits: Limits, watch: Watch = lambda trials: None,
    progress: Progress = lambda what, share: None,
) -> TuneResult:  # fmt: skip
    """Search, and make the best model.

    Args:
        float_model: whose metrics are the baseline.
        model: that trials run on.
        task: what is asked.
        limits: when to end.
        watch: told of all trials after each.
        progress: told what is done beside trials, and how much of it.

    Raises:
        TuningError: there is nothing to tune, a budget cannot be kept, or the study is of another search.
        Exception: what the evaluation of the float model raised, three times in a row.
    """
    _check(task)
    space = TuningSpace(model.ops, model.alternatives)
    of_float = {name: objective_of(name).of(model, space.widest()) for name in task.goal.looked_at}
    recipes = DEFAULT_RECIPES if task.recipes is None else task.recipes
    search = Search(
        space, model, task.goal, task.accuracy, of_float,
        recipes=recipes, seed=task.seed, loss_fn=task.loss_fn, progress=progress, is_late=limits.is_late,
    )  # fmt: skip
    proposals = begun(task.strategy, search, task.options)
    check_budgets(search)
    recovery = checked_recipes(search, asked=task.recipes is not None)
    study = Study(task.storage, _identity(model, task), task.study)
    evaluation = _evaluation(float_model, search, task, study, limits)
    search.baseline = baseline = evaluation.baseline
    confirmation = None if task.confirm is None else confirmation_of(search, task.confirm, float_model)
    acceptance = _acceptance(search, evaluation, confirmation)
    with closing(task.distribution.executor(evaluation, study)) as executor:
        search.workers = executor.workers
        loop = Loop(evaluation, acceptance, study, executor, limits, watch)
        with _saying_how_to_go_on(loop, task.storage):
            reason = loop.run(proposals)
    trials = acceptance.decided(loop.tried)
    if confirmation is not None:
        trials = confirmation.decided(trials, acceptance.expected(trials, loop.tried))
    best = best_of(trials) or trials[0]
    if not best.failed:
        study.keep_best(best, search.recovery)
    chosen = Candidate(search.space.widest()) if best.failed else Candidate(best.config, best.recovery)
    converted = search.converted(chosen)
    shown = baseline[METRIC] if set(baseline) == {METRIC} else dict(baseline)
    wholes = {"float": (float_model, TuneConfig({})), "best": (converted, chosen.config)}
    measured = measure(model, task.goal.names, wholes)
    wanted = Wanted(task.strategy, task.accuracy, task.goal, limits.max_trials, of_float, space.alternatives)
    result = TuneResult(
        converted, best.met, shown, best, trials, search.errors, study.name, wanted, search.part_errors,
        time.monotonic() - limits.started, measured, perturbations=search.perturbations, stopped_because=reason,
        left_out=search.left_out, recovery=recovery,
    )  # fmt: skip
    remember(result)
    study.end()
    return result


def _check(task: Task) -> None:
    for function, name in ((task.evaluate, "evaluate"), (task.loss_fn, "loss_fn"), (task.confirm, "confirm")):
        if function is not None and not callable(function):
            raise TuningError(f"{name} must be a function, not {function!r}")
    _check_loss_fn(task.loss_fn)
    if task.study == "" or not isinstance(task.study, str | None):
        raise TuningError(f"study is a name, not {task.study!r}; leave it out for one that is chosen")
    if task.distribution.needs_name and task.study is None:
        raise TuningError("processes that share a search need a study of the same name: give study=, and storage=")
    task.accuracy.warn()


def _check_loss_fn(loss_fn: Callable[..., Any] | None) -> None:
    if loss_fn is None:
        return
    try:
        inspect.signature(loss_fn).bind("model", "batch")
    except TypeError as error:
        raise TuningError(f"loss_fn takes the model and a batch of the calibration data: {error}") from None
    except ValueError:  # what is written in C may not tell
        return


def _evaluation(float_model: Any, search: Search, task: Task, study: Study, limits: Limits) -> Evaluation:
    """With the float model's metrics, and its scores where these are needed.

    It is evaluated also where the study knows the metrics, which tells whether the study is of this evaluation; but not
    where there is no time for a further trial.
    """
    test = None
    baseline = study.baseline if limits.is_late() and study.records() else None
    if baseline is None:
        by_batch = task.early_stopping is not None
        of_float = evaluate_float(task.evaluate, float_model, search.model, by_batch=by_batch)
        baseline = study.keep_baseline(of_float.metrics, of_float.scores)
    task.accuracy.check(baseline)
    reference = study.baseline_scores
    if task.early_stopping is not None and reference is not None:
        tolerable = task.accuracy.tolerable(baseline[METRIC])
        test = SequentialTest(reference[METRIC], tolerable, task.accuracy.is_higher_better(METRIC), task.early_stopping)
    return Evaluation(search, task.evaluate, baseline, reference, test)


def _acceptance(search: Search, evaluation: Evaluation, confirmation: Confirmation | None) -> Acceptance:
    """Return what judges the trials: by scores of samples where there are any and a confidence is asked for."""
    confidence, reference = search.accuracy.confidence, evaluation.reference
    if confidence is None or reference is None or (confirmation is not None and confirmation.samples is None):
        return EstimatedAcceptance(search, evaluation.baseline)
    deciding = None if confirmation is None else confirmation.samples
    return PairedAcceptance(search.accuracy, confidence, reference, search.seed, deciding)


@contextmanager
def _saying_how_to_go_on(loop: Loop, storage: Any) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as interrupt:
        count, name = len(loop.trials), loop.study.name
        interrupt.add_note(
            f"interrupted: study {name!r} in {displayed(storage)} keeps {count} trials; run it again to go on there"
        )
        raise


def _identity(model: TunableModel, task: Task) -> dict[str, str]:
    return {
        **model.identity,
        "alternatives": Encoding(model.alternatives).digest,
        "evaluation": _digest_of_code(task.evaluate),
    }


def _digest_of_code(function: Any) -> str:
    """Of what a function is written as; not of what it refers to."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None:
        return ""
    constants = [constant for constant in code.co_consts if isinstance(constant, str | int | float | bool)]
    return hashlib.sha256(code.co_code + repr((constants, code.co_names)).encode()).hexdigest()
