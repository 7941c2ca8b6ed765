"""A comparison as one HTML page that holds all it needs."""

from collections.abc import Sequence

from subbyte.report.doctor import table
from subbyte.report.doctor.charts import error_chart, sqnr_chart
from subbyte.report.doctor.figures import OpComparison
from subbyte.report.pages import render

_WRITTEN = ("decibels", "percent", "span", "saturation", "range_used", "codes_used")


def page(ops: Sequence[OpComparison], first_jump: str | None, conclusion: Sequence[str]) -> str:
    """Both charts, a table of ops and one of quantizers."""
    return render(
        "doctor/page.html.jinja",
        ops=ops, first_jump=first_jump, conclusion=conclusion, sqnr=sqnr_chart(ops), errors=error_chart(ops),
        **{name: getattr(table, name) for name in _WRITTEN},
    )  # fmt: skip
