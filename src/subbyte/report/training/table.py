"""The outcome of a training as a table."""

from rich.table import Table

from subbyte.report.summary import Summary
from subbyte.report.tuning.words import duration
from subbyte.training import TrainingResult


def outcome_table(summary: Summary, float_metric: float, result: TrainingResult) -> Table:
    """Metric and bytes, of the float model and of the quantized one.

    Args:
        summary: of the converted model.
        float_metric: what the same evaluation says of the float model.
        result: of the training.
    """
    table = Table(title="Subbyte training")
    table.add_column("")
    table.add_column("metric", justify="right")
    table.add_column("bytes", justify="right")
    metric = "-" if result.metric is None else f"{result.metric:.6g}"
    table.add_row("fp32", f"{float_metric:.6g}", f"{summary.totals['float_bytes']:,}")
    table.add_row("quantized", metric, f"{summary.totals['bytes']:,}")
    return table


def conclusion(result: TrainingResult) -> str:
    """How long it took, in a sentence."""
    count, seconds = len(result.history), sum(epoch.seconds for epoch in result.history)
    return f"{count} epoch{'s' * (count > 1)} in {duration(seconds)}, loss {result.history[-1].loss:.4g} in the last"
