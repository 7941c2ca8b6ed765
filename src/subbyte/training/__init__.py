"""Quantization-aware training: how the quantizers of a prepared model learn."""

from subbyte.training import gradients  # noqa: F401  (they register themselves)
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.gradient import Gradient
from subbyte.training.monitor import Departure, RangeMonitor
from subbyte.training.prepare import train_by
from subbyte.training.progress import follows_progress, set_progress
from subbyte.training.registry import as_gradient, register_gradient, registered_gradients
from subbyte.training.replicated_ranges import replicate_ranges
from subbyte.training.rules import OpRules, TrainingRules

__all__ = [
    "Departure",
    "Gradient",
    "OpRules",
    "Point",
    "RangeMonitor",
    "Slopes",
    "TrainingRules",
    "as_gradient",
    "register_gradient",
    "follows_progress",
    "registered_gradients",
    "replicate_ranges",
    "set_progress",
    "train_by",
]
