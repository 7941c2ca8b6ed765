"""What a user asks for, and how it becomes a TuneConfig."""

from subbyte.config.alternatives import alternatives
from subbyte.config.post_training import PostTrainingQuantConfig
from subbyte.config.request import as_request
from subbyte.config.resolve import resolve
from subbyte.config.shorthand import Shorthand, parse_shorthand

__all__ = ["alternatives", "PostTrainingQuantConfig", "Shorthand", "as_request", "parse_shorthand", "resolve"]
