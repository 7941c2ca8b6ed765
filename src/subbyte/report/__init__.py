"""Reports: what was asked, what was done, what it costs."""

from subbyte.report.explain import explain
from subbyte.report.summary import Summary, summary

__all__ = ["Summary", "explain", "summary"]
