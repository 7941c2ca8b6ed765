"""The outcome of a search, in words and as a table."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from subbyte.report.summary import summary
from subbyte.report.tuning.untried import untried_text, why_it_stopped
from subbyte.report.tuning.words import duration, found_loss_text, is_estimated, loss_text, objective_text
from subbyte.tuning import TuneResult


def conclusion(result: TuneResult) -> list[str]:
    """What is to be said of the whole search, in sentences."""
    said = [_of_the_criterion(result), _of_the_model(result), _of_the_trials(result), untried_text(result)]
    return [sentence for sentence in said if sentence]


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
    loss = "-" if best.failed else found_loss_text(result)
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
    said = f"loss {found_loss_text(result)} of at most {loss_text(accuracy.max_loss, accuracy)}{_how(result)}"
    broken = [
        f"{name} {objective_text(name, best.objectives[name])} of at most {objective_text(name, most)}"
        for name, most in result.wanted.goal.budgets.items()
        if best.objectives[name] > most
    ]
    return f"criterion {'met' if result.criterion_met else 'not met'}: {'; '.join([said, *broken])}"


def _how(result: TuneResult) -> str:
    """Return what stands behind the loss: samples that took no part in the search, or an estimate."""
    interval, accuracy = result.interval, result.wanted.accuracy
    if interval is not None and accuracy.confidence is not None:
        return (
            f" (with {accuracy.confidence:.0%} confidence at most {loss_text(interval.high, accuracy)}: "
            f"{interval.samples:,} samples that took no part in the search)"
        )
    if result.best.confirmed is not None:
        return " (by the evaluation that confirms)"
    if not is_estimated(result):
        return ""
    return (
        f" (an estimate; measured: {loss_text(result.best.loss, accuracy)}. An evaluation that returns a score for "
        "each sample, or a second one as confirm=, can show it)"
    )


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
        + f"study {result.study}; ended because {why_it_stopped(result)}"
    )


_COLUMNS: list[tuple[str, Any]] = [("", "left"), ("float", "right"), ("best", "right"), ("allowed", "right")]
