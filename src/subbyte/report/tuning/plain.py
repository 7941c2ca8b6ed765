"""A search as plain values: everything for JSON, a line for each trial for CSV."""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from subbyte.report.json_text import json_text
from subbyte.report.summary import summary
from subbyte.report.tuning.ops import tuned_ops
from subbyte.spec import OpConfig, OpKey
from subbyte.tuning import TuneResult, pareto


def as_json(result: TuneResult) -> str:
    """Everything; what is not finite, as the loss of a trial that failed, is null."""
    return json_text(_finite(_plain(result)), indent=2) + "\n"


def as_csv(result: TuneResult) -> str:
    """A line for each trial, with a column for each metric, objective and op."""
    metrics, objectives = list(result.baseline_metrics), list(result.best.objectives)
    ops = list(result.wanted.alternatives)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["number", *metrics, "loss", *objectives, "cost", "met", "recovery", "samples", "estimate", "low", "high",
         "confirmed", "seconds", "evaluation",
         "problem", *(f"{name} ({kind})" for name, kind in ops)]
    )  # fmt: skip
    for trial in result.trials:
        writer.writerow(
            [trial.number, *(trial.metrics.get(name, "") for name in metrics), "" if trial.failed else trial.loss,
             *(trial.objectives[name] for name in objectives), trial.cost, trial.met, trial.recovery,
             _cell(trial.samples), _cell(trial.estimate), _cell(getattr(trial.interval, "low", None)),
             _cell(getattr(trial.interval, "high", None)), _cell(trial.confirmed), trial.seconds,
             trial.evaluation, trial.problem, *(str(trial.config.op.get(key, OpConfig())) for key in ops)]
        )  # fmt: skip
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else value


def _plain(result: TuneResult) -> dict[str, Any]:
    wanted = result.wanted
    return {
        "criterion_met": result.criterion_met,
        "baseline": result.baseline,
        "best": result.best.number,
        "study": result.study,
        "seconds": result.seconds,
        "strategy": wanted.strategy,
        "criterion": {
            "max_loss": wanted.accuracy.max_loss,
            "unit": wanted.accuracy.criterion,
            "confidence": wanted.accuracy.confidence,
        },
        "loss": result.loss,
        "interval": None if result.interval is None else asdict(result.interval),
        "stopped_because": result.stopped_because,
        "objective": dict(wanted.goal.weights),
        "budgets": dict(wanted.goal.budgets),
        "max_trials": wanted.max_trials,
        "float_objectives": dict(wanted.of_float),
        "measured": {
            name: {whole: asdict(found) for whole, found in wholes.items()} for name, wholes in result.measured.items()
        },
        "model": summary(result.model).totals,
        "pareto": {name: [trial.number for trial in pareto(result.trials, name)] for name in wanted.goal.names},
        "ops": [op.to_dict() for op in tuned_ops(result)],
        "errors": _errors(result.errors),
        "part_errors": _errors(result.part_errors),
        "left_out": [
            {
                "name": name,
                "type": kind,
                "config": str(config),
                "beside": str(why.beside),
                "more": why.more,
                "spread": why.spread,
            }
            for (name, kind), every in result.left_out.items()
            for config, why in every.items()
        ],
        "untried": [
            {"name": name, "type": kind, "configs": [str(config) for config in every]}
            for (name, kind), every in result.untried.items()
        ],
        "perturbations": _errors(result.perturbations),
        "trials": [trial.to_dict() for trial in result.trials],
    }


def _errors(errors: Mapping[OpKey, Mapping[OpConfig, float]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "type": kind, "errors": {str(config): error for config, error in found.items()}}
        for (name, kind), found in errors.items()
    ]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
