"""The strategies, by name; open to a user's own."""

import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeVar

from subbyte.errors import TuningError, nearest
from subbyte.numerics import is_same_definition
from subbyte.tuning.search import Proposals, Search


class Strategy(Protocol):
    """A generator function: yields configurations that may be tried side by side, and is sent their trials.

    What it takes by name beside the search are its options.
    """

    def __call__(self, search: Search, /, **options: Any) -> Proposals: ...


_STRATEGIES: dict[str, Strategy] = {}


Function = TypeVar("Function", bound=Callable[..., Proposals])


def register_strategy(name: str) -> Callable[[Function], Function]:
    """Decorator: make a strategy known by name.

    It must propose the same configurations whenever the same seed and the same trials come back: an interrupted search
    is taken up by running it again, on the trials that there are.

    Raises:
        TuningError: the name is taken by another one.
    """

    def register(strategy: Function) -> Function:
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
    if not isinstance(name, str):
        raise TuningError(f"strategy is the name of one (known: {', '.join(_STRATEGIES)}), not {name!r}")
    if name not in _STRATEGIES:
        raise TuningError(f"strategy {name!r} is unknown{nearest(name, _STRATEGIES)} (known: {', '.join(_STRATEGIES)})")
    return _STRATEGIES[name]


def begun(name: str, search: Search, options: Mapping[str, Any]) -> Proposals:
    """What a strategy proposes.

    Args:
        name: of the strategy.
        search: that it sees.
        options: that it takes.

    Raises:
        TuningError: there is no such strategy, it has no such option, or it is no generator function.
    """
    strategy = strategy_of(name)
    if not isinstance(options, Mapping) or not all(isinstance(option, str) for option in options):
        raise TuningError(f"strategy_options: values by name are expected, not {options!r}")
    try:
        inspect.signature(strategy).bind(search, **options)
    except TypeError as error:
        raise TuningError(f"strategy_options of {name!r}: {error}") from None
    proposals = strategy(search, **options)
    if not isinstance(proposals, Generator):
        raise TuningError(f"strategy {name!r} is no generator function: it must yield lists of candidates")
    return proposals
