"""What every part of a capability file is checked with: keys, mappings, lists of names."""

from collections.abc import Iterable, Sequence

from subbyte.capability.source import Located, Place
from subbyte.errors import CapabilityError, listing, nearest, quoted


def check_keys(mapping: Located, allowed: Sequence[str], inside: str = "") -> None:
    """Refuse keys that are not in `allowed`.

    Raises:
        CapabilityError: `FILE:LINE: unknown key ...`.
    """
    for key in mapping:
        if key not in allowed:
            raise unknown(mapping.at(key), f"key {quoted(key)}" + (f" in {inside}" if inside else ""), key, allowed)


def unknown(place: Place, what: str, word: str, allowed: Iterable[str]) -> CapabilityError:
    """The error for a word that is not among the allowed ones."""
    choices = list(allowed)
    return CapabilityError(f"{place}: unknown {what}{nearest(word, choices)} (allowed: {listing(choices)})")


def mapping_at(parent: Located, key: str) -> Located:
    """The mapping under a key; empty where the key is missing."""
    value = parent.get(key)
    if value is None:
        return Located(parent.place)
    if not isinstance(value, Located):
        raise CapabilityError(f"{parent.at(key)}: {key}: expected a mapping of names to values, found {quoted(value)}")
    return value


def texts_at(parent: Located, key: str) -> tuple[str, ...]:
    """A non-empty list of text; one text stands for a list of one."""
    value = parent.get(key)
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str) for item in items):
        raise CapabilityError(f"{parent.at(key)}: {key}: expected a list of names, found {quoted(value)}")
    return tuple(items)
