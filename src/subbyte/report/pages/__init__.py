"""What the HTML pages have in common: one file each, that holds all it needs."""

from subbyte.report.pages.render import render
from subbyte.report.pages.scale import Scale, Tick, scale_of

__all__ = ["Scale", "Tick", "render", "scale_of"]
