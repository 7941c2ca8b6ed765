"""Quantization-aware training: how the quantizers of a prepared model learn."""

from subbyte.training import binary, gradients  # noqa: F401  (gradients register themselves)
from subbyte.training.asked import Asked
from subbyte.training.batch_norm import freeze_batch_norm, reestimate_batch_norm
from subbyte.training.by_slopes import Point, Slopes
from subbyte.training.distillation import Distillation, distillation_of
from subbyte.training.gradient import Gradient
from subbyte.training.loop import run_training
from subbyte.training.monitor import Departure, RangeMonitor
from subbyte.training.plan import Stage, TrainingPlan
from subbyte.training.prepare import train_by
from subbyte.training.progress import follows_progress, set_progress
from subbyte.training.registry import as_gradient, register_gradient, registered_gradients
from subbyte.training.relative_steps import RelativeSteps
from subbyte.training.replicated_ranges import replicate_ranges
from subbyte.training.requantize import requantize
from subbyte.training.result import Epoch, Progress, TrainingResult
from subbyte.training.rules import OpRules, TrainingRules
from subbyte.training.unused_rules import check_rules_used

__all__ = [
    "Asked",
    "Departure",
    "Distillation",
    "Epoch",
    "Gradient",
    "OpRules",
    "Point",
    "Progress",
    "RangeMonitor",
    "RelativeSteps",
    "Slopes",
    "Stage",
    "TrainingPlan",
    "TrainingResult",
    "TrainingRules",
    "as_gradient",
    "check_rules_used",
    "distillation_of",
    "follows_progress",
    "freeze_batch_norm",
    "reestimate_batch_norm",
    "register_gradient",
    "registered_gradients",
    "replicate_ranges",
    "requantize",
    "run_training",
    "set_progress",
    "train_by",
]
