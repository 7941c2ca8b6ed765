"""Whether a definition has been run again, as a notebook does with its cells."""

from typing import Any


def is_same_definition(known: Any, new: Any) -> bool:
    """Whether two functions or classes are of one module and of one name in it."""
    return _address(known) is not None and _address(known) == _address(new)


def _address(definition: Any) -> tuple[str, str] | None:
    name = getattr(definition, "__qualname__", None)
    return None if name is None else (definition.__module__, name)
