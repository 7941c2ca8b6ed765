"""Reports: what was asked, what was done, what it costs."""

from subbyte.report.doctor import Comparison, compare
from subbyte.report.explain import explain
from subbyte.report.summary import Summary, summary

__all__ = ["Comparison", "Summary", "compare", "explain", "summary"]
