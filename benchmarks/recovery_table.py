"""The rows of the tables of recovery: a method over all seeds, beside the float model and beside min-max alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs import Outcome

from networks import Change, Judged, Metric, average
from report import Report

CLOCK_MINUTES, CORES = 5.0, 2  # that a method may take; two threads halve the time on the clock (see README.md)
_ABSENT = "-"


@dataclass(frozen=True)
class Row:
    """A method.

    Args:
        label: of the method.
        outcomes: one for each seed.
    """

    label: str
    outcomes: Sequence[Outcome]

    @property
    def problem(self) -> str:
        """Why there is nothing to show; empty where there is."""
        return next((outcome.problem for outcome in self.outcomes if outcome.problem), "")

    @property
    def minutes(self) -> float:
        return max(outcome.seconds for outcome in self.outcomes) / 60

    @property
    def mebibytes(self) -> float:
        return max(outcome.peak for outcome in self.outcomes) / 2**20

    def judged(self, metric: Metric) -> list[Judged]:
        return [outcome.judged(metric) for outcome in self.outcomes]

    def value(self, metric: Metric) -> float:
        values = [judged.value for judged in self.judged(metric)]
        return sum(values) / len(values)

    def changes_from(self, other: "Row", metric: Metric) -> list[Change]:
        """For each seed."""
        pairs = zip(self.judged(metric), other.judged(metric), strict=True)
        return [judged.change_from(reference) for judged, reference in pairs]


def columns(metric: Metric) -> list[str]:
    """Their headings."""
    return ["method", metric.name, "change from fp32", "seeds", "gain over none", "CPU minutes", "memory, MiB"]


def cells_of_float(row: Row, metric: Metric) -> list[str]:
    """The first row."""
    return ["fp32", f"{row.value(metric):.{metric.digits}f}", *[_ABSENT] * 5]


def cells(row: Row, reference: Row, none: Row, metric: Metric) -> list[str]:
    """The row of a method, beside the float model and what min-max gives by itself."""
    if row.problem:
        return [row.label, "failed", *[_ABSENT] * 5]
    changes, digits = row.changes_from(reference, metric), metric.digits
    values = sorted((change.value for change in changes), reverse=not metric.higher_is_better)
    gain = _ABSENT if row is none or none.problem else _with_interval(_gain(row, none, metric), digits)
    return [
        row.label,
        f"{row.value(metric):.{digits}f}",
        _with_interval(average(changes), digits),
        " .. ".join(f"{value:+.{digits}f}" for value in (values[0], values[-1])),
        gain,
        f"{row.minutes:.2f}",
        f"{row.mebibytes:.0f}",
    ]


def state_goal(
    report: Report, precision: str, loss: float, rows: Sequence[Row], reference: Row, metric: Metric
) -> None:
    """Whether a method that is fast enough loses little enough, by the mean over seeds."""
    losses = {}
    for row in rows:
        if not row.problem and row.minutes <= CLOCK_MINUTES * CORES:
            change = average(row.changes_from(reference, metric)).value
            losses[row.label] = -change if metric.higher_is_better else change
    wanted = f"{precision} at most {loss:g} worse than fp32, in at most {CLOCK_MINUTES:g} minutes of {CORES} cores"
    if not losses:
        report.goal(wanted, "no method gave a model in that time", met=False)
        return
    label, least = min(losses.items(), key=lambda item: item[1])
    report.goal(wanted, f"{least:+.{metric.digits}f} by {label}", met=least <= loss)


def _gain(row: Row, none: Row, metric: Metric) -> Change:
    """By how much better a method is."""
    change = average(row.changes_from(none, metric))
    return change if metric.higher_is_better else Change(-change.value, change.error)


def _with_interval(change: Change, digits: int) -> str:
    low, high = change.interval
    return f"{change.value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
