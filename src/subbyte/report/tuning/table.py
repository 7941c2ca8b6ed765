"""The outcome of a search, in words and as a table."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from subbyte.report.summary import summary
from subbyte.report.tuning.words import duration, loss_text, objective_text
from subbyte.tuning import TuneResult


def conclusion(result: TuneResult) -> list[str]:
    """What is to be said of the whole search, in sentences."""
    return [_of_the_criterion(result), _of_the_model(result), _of_the_trials(result)]


def outcome_table(result: TuneResult) -> Table:
    """Metrics and objectives, of the float model and of the best trial."""
    table = Table(title="Subbyte tuning")
    for heading, justify in _COLUMNS:
        table.add_column(heading, justify=justify, overflow="fold")
    for row in outcome_rows(result):
        table.add_row(*map(Text, row))
    return table


def outcome_rows(result: TuneResult) -> Iterator[tuple[str, str, str, str]]:
    """Name, in float, of the best trial, what was allowed."""
    best, wanted = result.best, result.wanted
    for name, value in result.baseline_metrics.items():
        found = best.metrics.get(name)
        yield name, f"{value:.6g}", "-" if found is None else f"{found:.6g}", ""
    loss = "-" if best.failed else loss_text(best.loss, wanted.accuracy)
    yield (
        f"loss ({wanted.accuracy.criterion})",
        "",
        loss,
        f"at most {loss_text(wanted.accuracy.max_loss, wanted.accuracy)}",
    )
    for name, value in best.objectives.items():
        most = wanted.goal.budgets.get(name)
        allowed = "" if most is None else f"at most {objective_text(name, most)}"
        yield name, objective_text(name, wanted.of_float[name]), objective_text(name, value), allowed
    for name, wholes in result.measured.items():
        of_float, of_best = (objective_text(name, wholes[whole].measured) for whole in ("float", "best"))
        yield f"{name}, measured as a whole", of_float, of_best, ""


def _of_the_criterion(result: TuneResult) -> str:
    best, accuracy = result.best, result.wanted.accuracy
    if best.failed:
        return f"criterion not met: every trial failed, the last with {result.trials[-1].problem}; the model is float"
    said = f"loss {loss_text(best.loss, accuracy)} of at most {loss_text(accuracy.max_loss, accuracy)}"
    broken = [
        f"{name} {objective_text(name, best.objectives[name])} of at most {objective_text(name, most)}"
        for name, most in result.wanted.goal.budgets.items()
        if best.objectives[name] > most
    ]
    return f"criterion {'met' if result.criterion_met else 'not met'}: {'; '.join([said, *broken])}"


def _of_the_model(result: TuneResult) -> str:
    totals = summary(result.model).totals
    return (
        f"model: {totals['bytes']:,} bytes, {totals['float_bytes']:,} in float ({totals['compression']:.2f}x smaller), "
        f"of trial {result.best.number}"
    )


def _of_the_trials(result: TuneResult) -> str:
    failed = sum(trial.failed for trial in result.trials)
    evaluation = sum(trial.evaluation for trial in result.trials)
    return (
        f"{len(result.trials)} trials of at most {result.wanted.max_trials}"
        + (f", {failed} failed" if failed else "")
        + f", strategy {result.wanted.strategy}, {duration(result.seconds)}; evaluations {duration(evaluation)}; "
        + f"study {result.study}"
    )


_COLUMNS: list[tuple[str, Any]] = [("", "left"), ("float", "right"), ("best", "right"), ("allowed", "right")]
