"""The ways to traverse the tuning space, one small generator in each file."""

from subbyte.tuning.strategies import (  # noqa: F401  (they register themselves)
    auto,
    basic,
    conservative,
    exhaustive,
    hawq_v2,
    mse,
    mse_v2,
    random,
    samplers,
    sensitivity,
)
from subbyte.tuning.strategies.registry import Strategy, begun, register_strategy, registered_strategies, strategy_of

__all__ = ["Strategy", "begun", "register_strategy", "registered_strategies", "strategy_of"]
