"""What tuning found, as page, figures and lines; `TuneResult.report` finds these forms by their endings."""

from subbyte.report.tuning.page import as_html
from subbyte.report.tuning.plain import as_csv, as_json
from subbyte.tuning import register_report

__all__ = ["as_csv", "as_html", "as_json"]

register_report(".html", as_html)
register_report(".json", as_json)
register_report(".csv", as_csv)
