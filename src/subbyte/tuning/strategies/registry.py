"""The strategies, by name; open to a user's own."""

from collections.abc import Callable
from typing import Protocol

from subbyte.errors import TuningError, nearest
from subbyte.numerics import is_same_definition
from subbyte.tuning.search import Proposals, Search


class Strategy(Protocol):
    """A generator function: yields configurations that may be tried side by side, and is sent their trials."""

    def __call__(self, search: Search, /) -> Proposals: ...


_STRATEGIES: dict[str, Strategy] = {}


def register_strategy(name: str) -> Callable[[Strategy], Strategy]:
    """Decorator: make a strategy known by name.

    It must propose the same configurations whenever the same seed and the same trials come back: an interrupted search
    is taken up by running it again, on the trials that there are.

    Raises:
        TuningError: the name is taken by another one.
    """

    def register(strategy: Strategy) -> Strategy:
        if name in _STRATEGIES and not is_same_definition(_STRATEGIES[name], strategy):
            raise TuningError(f"strategy name {name!r} is taken; choose another")
        _STRATEGIES[name] = strategy
        return strategy

    return register


def registered_strategies() -> tuple[str, ...]:
    """The names of all strategies."""
    return tuple(_STRATEGIES)


def strategy_of(name: str) -> Strategy:
    """A strategy by name.

    Raises:
        TuningError: there is none.
    """
    if name not in _STRATEGIES:
        raise TuningError(f"strategy {name!r} is unknown{nearest(name, _STRATEGIES)} (known: {', '.join(_STRATEGIES)})")
    return _STRATEGIES[name]
