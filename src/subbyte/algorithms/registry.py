"""The methods, by name, and the forms in which a user asks for them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from subbyte import calibration
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.calibration import MinMax, Statistics
from subbyte.config.recipes import register_recipe
from subbyte.errors import RecoveryError, listing, nearest
from subbyte.numerics import is_same_definition

_METHODS: dict[str, type[RecoveryMethod]] = {}


def register_algorithm(name: str, statistics: type[Statistics] = MinMax) -> Callable[[Any], Any]:
    """Decorator: make an algorithm known by name: a RecoveryMethod subclass, or a function that finds ranges.

    Args:
        name: as `recover=[...]` and `recipes` write a method; as a spec's `algorithm` writes a function, for which see
            `calibration.register_algorithm`.
        statistics: of a function, what it collects of activations.

    What is defined again (a notebook cell, run twice) replaces what it registered before.

    Raises:
        RecoveryError: the name is taken, or this is neither.
    """

    def register(definition: Any) -> Any:
        if not isinstance(definition, type):
            return calibration.register_algorithm(name, statistics)(definition)
        if not issubclass(definition, RecoveryMethod) or not isinstance(getattr(definition, "stage", None), Stage):
            raise RecoveryError(f"recovery method {name!r} must be a subclass of RecoveryMethod whose stage is a Stage")
        if name in _METHODS and not is_same_definition(_METHODS[name], definition):
            raise RecoveryError(f"the name {name!r} of a recovery method is taken; choose another")
        definition.name = name
        _METHODS[name] = definition
        register_recipe(name)
        return definition

    return register


def registered_methods() -> tuple[str, ...]:
    """The names of all recovery methods."""
    return tuple(_METHODS)


def as_methods(asked: Any) -> list[RecoveryMethod]:
    """Read a request for recovery.

    Args:
        asked: a name, a method, `{name: options}`, or a sequence of these; of a mapping, True stands for the
            defaults and False leaves a method out.

    Raises:
        RecoveryError: an unknown name or option, or methods that cannot follow one another.
    """
    given = [asked] if isinstance(asked, str | RecoveryMethod | Mapping | type) else asked
    if not isinstance(given, Sequence):
        raise RecoveryError(
            f"recovery methods: a list of methods is expected, as in ['equalize', 'reconstruct'], not {asked!r}"
        )
    methods = [method for entry in given for method in _read(entry)]
    _check_order(methods)
    return methods


def _read(entry: Any) -> list[RecoveryMethod]:
    if isinstance(entry, RecoveryMethod):
        if entry.name not in _METHODS:
            cls = type(entry).__name__
            raise RecoveryError(
                f"recovery methods: {cls} has no name; put @subbyte.register_algorithm('NAME') before it"
            )
        return [entry]
    if isinstance(entry, str):
        return [_method(entry)()]
    if isinstance(entry, type):
        raise RecoveryError(f"recovery methods: {entry.__name__} is a class; write {entry.__name__}(), or its name")
    if not isinstance(entry, Mapping):
        raise RecoveryError(
            f"recovery methods: a method is a name, {{name: options}} or a RecoveryMethod, not {entry!r}"
        )
    methods = []
    for name, options in entry.items():
        if not isinstance(options, bool | Mapping | None):
            raise RecoveryError(f"recovery method {name!r}: options are a mapping, or true or false, not {options!r}")
        if options is not False:
            methods.append(_method(name)(**(options if isinstance(options, Mapping) else {})))
    return methods


def _method(name: Any) -> type[RecoveryMethod]:
    if name not in _METHODS:
        raise RecoveryError(
            f"recovery method {name!r} is unknown{nearest(str(name), _METHODS)} (known: {listing(_METHODS)})"
        )
    return _METHODS[name]


def _check_order(methods: Sequence[RecoveryMethod]) -> None:
    for before, after in pairwise(methods):
        if after.stage < before.stage:
            raise RecoveryError(
                f"recovery methods: {after.name!r} ({after.stage.name.lower()}) comes after {before.name!r} "
                f"({before.stage.name.lower()}), whose work it would undo; the order is "
                f"{', '.join(stage.name.lower() for stage in Stage)}: put it before"
            )
    alone = [method for method in methods if method.alone]
    if alone and len(methods) > 1:
        raise RecoveryError(f"recovery methods: {alone[0].name!r} chooses methods by itself; name no other beside it")
    names = [method.name for method in methods]
    for method in methods:
        if names.count(method.name) > 1:
            raise RecoveryError(f"recovery methods: {method.name!r} is asked for twice")
        for other in methods:
            if other.name in method.excludes:
                raise RecoveryError(
                    f"recovery methods: {method.name!r} and {other.name!r} do the same in two ways, so that one would "
                    "undo the other; keep one of them"
                )
