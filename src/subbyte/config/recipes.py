"""`recipes` of a request: which ends of a network stay float, and the methods that recover accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from subbyte.errors import nearest, quoted

EndRecipe = Literal["first_conv_or_matmul_quantization", "last_conv_or_matmul_quantization"]
ENDS = get_args(EndRecipe)

_METHODS: dict[str, None] = {}


def register_recipe(name: str) -> None:
    """Let requests name a recovery method, which a layer above this one defines."""
    _METHODS[name] = None


def read_recipes(given: Any) -> dict[str, Any]:
    """Recipes in one form: by name True, False, or a method's options.

    Args:
        given: such a mapping, or a sequence of names and of mappings.

    Raises:
        ValueError: an unknown name, or a value of the wrong kind.
    """
    if isinstance(given, Mapping):
        for name, value in given.items():
            _check(name, value)
        return dict(given)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError("a mapping or a list of names is expected")
    recipes: dict[str, Any] = {}
    for entry in given:
        added = read_recipes({entry: True} if isinstance(entry, str) else entry)
        twice = [name for name in added if name in recipes]
        if twice:
            raise ValueError(f"{quoted(twice[0])} is named twice")
        recipes |= added
    return recipes


def _check(name: Any, value: Any) -> None:
    known = (*ENDS, *_METHODS)
    if name not in known:
        raise ValueError(f"unknown {quoted(name)}{nearest(str(name), known)} (allowed: {', '.join(known)})")
    if not isinstance(value, bool) and (name in ENDS or not isinstance(value, Mapping)):
        options = "" if name in ENDS else " or a mapping of options"
        raise ValueError(f"input should be a valid boolean{options}")
