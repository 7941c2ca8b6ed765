"""A training from its first epoch to its last."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from subbyte.errors import ConfigError, EvaluationError, TrainingError
from subbyte.training.batch_norm import reestimate_batch_norm
from subbyte.training.beforehand import check_functions, check_model, check_plan, length_of, repeatable
from subbyte.training.best import Best, better
from subbyte.training.distillation import Distillation
from subbyte.training.identity import identity_of
from subbyte.training.plan import TrainingPlan
from subbyte.training.random_state import seeded
from subbyte.training.result import Epoch, Progress, TrainingResult
from subbyte.training.resume import TrainingFile
from subbyte.training.run import Loss, TrainingRun
from subbyte.training.samplers import begin_epoch

Evaluate = Callable[[nn.Module], Any]


def run_training(
    model: nn.Module,
    loader: Any,
    loss_fn: Loss,
    plan: TrainingPlan,
    *,
    distill: Distillation | None = None,
    data: Any = None,
    evaluate: Evaluate | None = None,
    checkpoint: str | Path | None = None,
    seed: int = 0,
    watch: Callable[[Progress], None] = lambda progress: None,
    save: Callable[[nn.Module], None] = lambda model: None,
) -> TrainingResult:
    """What `subbyte.train` does, and whose arguments these are.

    Args:
        watch: is told where the training is, after each step and, with its metric, after each epoch.
        save: is given the model whenever it is, after an epoch, the one that would come back if that were the last.
    """
    if plan.keep == "best" and evaluate is None:
        raise ConfigError("keep='best' needs a metric to tell which is: give evaluate=...")
    check_model(model)
    check_functions(loss_fn, evaluate)
    steps, data = length_of(loader) * plan.epochs, repeatable(data)
    with seeded(seed):
        run = TrainingRun(model, plan, steps, loss_fn, data, distill)
        check_plan(model, plan, steps, data)
    identity = {} if checkpoint is None else identity_of(model, plan, steps, loss_fn, distill, seed)
    kept = None if checkpoint is None else TrainingFile(checkpoint, loader, identity)
    with seeded(seed):
        history, best = ([], None) if kept is None else kept.take_up(run)
        for number in range(len(history) + 1, plan.epochs + 1):
            try:
                epoch = _epoch(run, loader, number, evaluate, history, watch)
            except KeyboardInterrupt as interrupt:
                if kept is not None and history:
                    interrupt.add_note(f"epochs kept in {kept.path}: {len(history)}; the same call goes on there")
                raise
            history.append(epoch)
            watch(Progress(number, plan.epochs, run.step, run.steps, epoch.loss, tuple(history)))
            is_final = run.stage == len(plan.stages)  # at the last configuration
            if plan.keep == "best" and is_final and epoch.metric is not None:
                best = better(best, model, number, epoch.metric, higher_is_better=plan.higher_is_better)
            if kept is not None:
                kept.write(run, history, best)
            if is_final and (plan.keep == "last" or (best is not None and best.epoch == number)):
                save(model)
        if plan.keep == "best" and best is None:
            raise EvaluationError(
                "keep='best': the metric is NaN after every epoch at the last configuration, so none is the best; look "
                "at evaluate and the loss"
            )
        return _result(run, history, best, evaluate)


def _epoch(
    run: TrainingRun,
    loader: Any,
    number: int,
    evaluate: Evaluate | None,
    history: list[Epoch],
    watch: Callable[[Progress], None],
) -> Epoch:
    began, total, steps = time.monotonic(), 0.0, 0
    of_epoch = run.steps // run.plan.epochs
    run.begin_epoch()
    begin_epoch(loader, number)
    for steps, batch in enumerate(loader, 1):
        if steps > of_epoch:
            break
        total += run.take_step(batch)
        watch(Progress(number, run.plan.epochs, run.step, run.steps, total / steps, tuple(history)))
    if steps != of_epoch:
        raise TrainingError(f"loader: it gave {steps} batches in epoch {number}, and has a length of {of_epoch}")
    metric = _metric(run.model, evaluate)
    return Epoch(number, total / steps, run.learning_rate, run.stage, metric, time.monotonic() - began)


def _result(run: TrainingRun, history: list[Epoch], best: Best | None, evaluate: Evaluate | None) -> TrainingResult:
    model, plan = run.model, run.plan
    if best is not None:
        model.load_state_dict(best.state)
    metric = history[-1].metric if best is None else best.metric
    if plan.reestimate_batch_norm:
        reestimate_batch_norm(model, run.data)
        metric = _metric(model, evaluate)
    return TrainingResult(model.eval(), tuple(history), metric)


def _metric(model: nn.Module, evaluate: Evaluate | None) -> float | None:
    """What an evaluation says of a model in eval(); None without one.

    Raises:
        EvaluationError: it is no number.
    """
    if evaluate is None:
        return None
    with torch.no_grad():
        found = evaluate(model.eval())
    try:
        return float(found)
    except (TypeError, ValueError):
        raise EvaluationError(f"evaluate: a metric is one number, not {found!r}") from None
