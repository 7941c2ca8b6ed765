"""The ways to traverse the tuning space, one small generator in each file."""

from subbyte.tuning.strategies import exhaustive, random, sensitivity  # noqa: F401  (they register themselves)
from subbyte.tuning.strategies.registry import Strategy, register_strategy, registered_strategies, strategy_of

__all__ = ["Strategy", "register_strategy", "registered_strategies", "strategy_of"]
