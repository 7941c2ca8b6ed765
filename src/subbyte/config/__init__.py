"""What a user asks for, and how it becomes a TuneConfig."""

from subbyte.config.alternatives import alternatives
from subbyte.config.criteria import AccuracyCriterion, TuningCriterion
from subbyte.config.post_training import PostTrainingQuantConfig
from subbyte.config.quantization_aware import QuantizationAwareTrainingConfig, for_training
from subbyte.config.request import as_request, sampling_size
from subbyte.config.resolve import resolve
from subbyte.config.shorthand import Shorthand, parse_shorthand

__all__ = [
    "AccuracyCriterion",
    "PostTrainingQuantConfig",
    "QuantizationAwareTrainingConfig",
    "Shorthand",
    "TuningCriterion",
    "alternatives",
    "as_request",
    "for_training",
    "parse_shorthand",
    "resolve",
    "sampling_size",
]
