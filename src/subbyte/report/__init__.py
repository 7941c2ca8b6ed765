"""Reports: what was asked, what was done, what it costs."""

from subbyte.report.doctor import Comparison, compare
from subbyte.report.explain import explain
from subbyte.report.summary import Summary, summary
from subbyte.report.tuning import as_csv, as_html, as_json

__all__ = ["Comparison", "Summary", "as_csv", "as_html", "as_json", "compare", "explain", "summary"]
