"""What a training says while it runs."""

from subbyte.report.training.live import shown_live

__all__ = ["shown_live"]
