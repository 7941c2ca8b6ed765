"""The shorthand of a request; capability files write it too, so its grammar lives with them."""

from subbyte.capability import Shorthand, parse_shorthand

__all__ = ["Shorthand", "parse_shorthand"]
