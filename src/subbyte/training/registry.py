"""The gradients, by name, and the forms in which a user asks for one."""

from collections.abc import Callable, Mapping
from typing import Any

from subbyte.errors import ConfigError, listing, nearest
from subbyte.numerics import is_same_definition
from subbyte.training.gradient import Gradient

_GRADIENTS: dict[str, type[Gradient]] = {}


def register_gradient(name: str) -> Callable[[type[Gradient]], type[Gradient]]:
    """Decorator: make a Gradient subclass known by name, for `prepare_qat(training={"weight": name})`.

    A class that is defined again (a notebook cell, run twice) replaces what it registered before.

    Raises:
        ConfigError: the name is taken, this is no Gradient subclass, or it does not say how the gradient goes back.
    """

    def register(definition: type[Gradient]) -> type[Gradient]:
        if not isinstance(definition, type) or not issubclass(definition, Gradient):
            raise ConfigError(f"gradient {name!r} must be a subclass of Gradient, not {definition!r}")
        _check_complete(name, definition)
        if name in _GRADIENTS and not is_same_definition(_GRADIENTS[name], definition):
            raise ConfigError(f"the name {name!r} of a gradient is taken; choose another")
        definition.name = name
        _GRADIENTS[name] = definition
        return definition

    return register


def registered_gradients() -> tuple[str, ...]:
    """The names of all gradients."""
    return tuple(_GRADIENTS)


def as_gradient(asked: Any) -> Gradient:
    """Read a gradient: a name, `{name: options}`, or a Gradient.

    Raises:
        ConfigError: an unknown name or option, or none of these.
    """
    if isinstance(asked, Gradient):
        return asked
    if isinstance(asked, str):
        return _known(asked)()
    if isinstance(asked, Mapping) and len(asked) == 1:
        ((name, options),) = asked.items()
        if isinstance(options, Mapping):
            return _known(name)(**options)
    raise ConfigError(f"a gradient is a name, {{name: options}} or a Gradient object, not {asked!r}")


def _check_complete(name: str, definition: type[Gradient]) -> None:
    ways = ("slopes", "learned", "fake_quantize", "fake_quantize_at")
    if all(getattr(definition, way) is getattr(Gradient, way) for way in ways):
        raise ConfigError(f"gradient {name!r} does not say how it goes back: define slopes, or fake_quantize")
    missing = sorted(getattr(definition, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"gradient {name!r} lacks {', '.join(missing)}, which its base asks for")


def _known(name: Any) -> type[Gradient]:
    if name not in _GRADIENTS:
        raise ConfigError(
            f"gradient {name!r} is unknown{nearest(str(name), _GRADIENTS)} (known: {listing(_GRADIENTS)})"
        )
    return _GRADIENTS[name]
