"""The rows of the tables of training: a precision over all seeds, beside the float network trained as long."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs import Outcome

from networks import Change, Metric, average

COLUMNS = ("change from fp32", "seeds", "minutes", "bytes")
_ABSENT = "-"


@dataclass(frozen=True)
class Row:
    """What came of a precision.

    Args:
        labels: what it is, in as many cells.
        outcomes: one for each seed.
    """

    labels: Sequence[str]
    outcomes: Sequence[Outcome]

    @property
    def problem(self) -> str:
        """Why there is nothing to show; empty where there is."""
        return next((outcome.problem for outcome in self.outcomes if outcome.problem), "")

    def values(self, metric: Metric) -> list[float]:
        """For each seed."""
        return [outcome.judged(metric).value for outcome in self.outcomes]

    def changes_from(self, reference: "Row", metric: Metric) -> list[Change]:
        """For each seed, from the reference with the same seed, paired image by image."""
        pairs = zip(self.outcomes, reference.outcomes, strict=True)
        return [own.judged(metric).change_from(other.judged(metric)) for own, other in pairs]

    def change_from(self, reference: "Row", metric: Metric) -> Change:
        """The mean over seeds."""
        return average(self.changes_from(reference, metric))


def columns(labels: Sequence[str], metric: Metric) -> list[str]:
    """The headings."""
    return [*labels, f"{metric.name}: mean (seeds)", *COLUMNS]


def cells(row: Row, reference: Row, metric: Metric) -> list[str]:
    """Of a row, beside the float network."""
    if row.problem:
        return [*row.labels, "failed", *[_ABSENT] * len(COLUMNS)]
    values = row.values(metric)
    shown = f"{_mean(values):.2f} ({min(values):.2f} .. {max(values):.2f})"
    return [
        *row.labels,
        shown,
        *([_ABSENT] * 2 if row is reference or reference.problem else _changes(row, reference, metric)),
        f"{_mean([outcome.seconds for outcome in row.outcomes]) / 60:.1f}",
        f"{row.outcomes[0].size:,}" if row.outcomes[0].size else _ABSENT,
    ]


def _changes(row: Row, reference: Row, metric: Metric) -> list[str]:
    of_seeds = [change.value for change in row.changes_from(reference, metric)]
    change = row.change_from(reference, metric)
    low, high = change.interval
    return [f"{change.value:+.2f} [{low:+.2f}, {high:+.2f}]", f"{min(of_seeds):+.2f} .. {max(of_seeds):+.2f}"]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
