"""The calibration algorithms, by name."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from subbyte.calibration.distribution import Distribution
from subbyte.calibration.statistics import MinMax, Statistics
from subbyte.errors import CalibrationError, ConfigError, listing, nearest, quoted
from subbyte.numerics import is_same_definition
from subbyte.spec import QuantParams, TensorSpec

_CALL = re.compile(r"(\w+)(?:\(([-+.\deE]+)\))?")


class RangeFunction(Protocol):
    """From the distribution of each block to parameters, scale and zero point of shape [blocks]."""

    def __call__(self, distribution: Distribution, spec: TensorSpec, /) -> QuantParams: ...


@dataclass(frozen=True)
class Algorithm:
    """A calibration algorithm: what it collects, and what it makes of it."""

    name: str
    function: Callable[..., QuantParams]
    statistics: type[Statistics]
    argument: float | None = None

    @property
    def takes_argument(self) -> bool:
        """Whether `name(2.5)` may be written."""
        return len(inspect.signature(self.function).parameters) > 2

    def params(self, distribution: Distribution, spec: TensorSpec) -> QuantParams:
        """Scale and zero point of shape [blocks].

        Raises:
            CalibrationError: the algorithm needs more than its statistics have kept; the message names it.
        """
        arguments = () if self.argument is None else (self.argument,)
        try:
            return self.function(distribution, spec, *arguments)
        except CalibrationError as error:
            raise CalibrationError(f"algorithm {quoted(self.name)}: {error}") from None


_ALGORITHMS: dict[str, Algorithm] = {}


def register_algorithm(
    name: str, statistics: type[Statistics] = MinMax
) -> Callable[[Callable[..., QuantParams]], Callable[..., QuantParams]]:
    """Decorator: make `function(distribution, spec[, argument]) -> QuantParams` known by name.

    Args:
        name: as a spec's `algorithm` writes it; `name(2.5)` passes 2.5 as the argument.
        statistics: what to collect from activations; weights are always known exactly.

    A function that is defined again (a notebook cell, run twice) replaces what it registered before.

    Raises:
        ConfigError: the name is taken by another function.
    """

    def register(function: Callable[..., QuantParams]) -> Callable[..., QuantParams]:
        if name in _ALGORITHMS and not is_same_definition(_ALGORITHMS[name].function, function):
            raise ConfigError(f"algorithm name {quoted(name)} is taken; choose another")
        _ALGORITHMS[name] = Algorithm(name, function, statistics)
        return function

    return register


def registered_algorithms() -> tuple[str, ...]:
    """The names of all calibration algorithms."""
    return tuple(_ALGORITHMS)


def algorithm_of(spec: TensorSpec) -> Algorithm:
    """The algorithm that a spec names, with its argument.

    Raises:
        ConfigError: no such algorithm.
    """
    return parse_algorithm(spec.algorithm)


def parse_algorithm(text: str) -> Algorithm:
    """Read `minmax`, `percentile(99.9)`, ...

    Raises:
        ConfigError: no such algorithm, or an argument that it does not take.
    """
    match = _CALL.fullmatch(text)
    name = match.group(1) if match else text
    if match is None or name not in _ALGORITHMS:
        raise ConfigError(
            f"algorithm {quoted(text)} is unknown{nearest(name, _ALGORITHMS)} (known: {listing(_ALGORITHMS)})"
        )
    known = _ALGORITHMS[name]
    try:
        argument = float(match.group(2)) if match.group(2) else None
    except ValueError:
        raise ConfigError(f"algorithm {quoted(text)}: the argument is not a number") from None
    if argument is not None and not known.takes_argument:
        raise ConfigError(f"algorithm {quoted(text)}: {name} takes no argument; write {quoted(name)}")
    return Algorithm(known.name, known.function, known.statistics, argument)
