"""A comparison as one HTML page that holds all it needs."""

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from subbyte.report.doctor import table
from subbyte.report.doctor.charts import error_chart, sqnr_chart
from subbyte.report.doctor.figures import OpComparison

_WRITTEN = ("decibels", "percent", "span", "saturation", "range_used", "codes_used")


def page(ops: Sequence[OpComparison], first_jump: str | None, conclusion: Sequence[str]) -> str:
    """Both charts, a table of ops and one of quantizers; SVG and styles inline, no script."""
    environment = Environment(
        loader=PackageLoader("subbyte.report.doctor", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update({name: getattr(table, name) for name in _WRITTEN})
    return environment.get_template("page.html.jinja").render(
        ops=ops, first_jump=first_jump, conclusion=conclusion, sqnr=sqnr_chart(ops), errors=error_chart(ops)
    )
