"""How one capability description lies over another."""

from subbyte.capability.source import Located
from subbyte.errors import CapabilityError, nearest


def merge(base: Located, over: Located) -> Located:
    """`over` field by field over `base`: mapping over mapping; a list or value replaces; null removes.

    Raises:
        CapabilityError: a null that removes nothing, most often a misspelt key.
    """
    merged = Located(over.place)
    for key, value in base.items():
        merged.put(key, value, base.at(key))
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            _remove(merged, key, over)
        elif isinstance(below, Located) and isinstance(value, Located):
            merged.put(key, merge(below, value), over.at(key))
        else:
            merged.put(key, without_nulls(value), over.at(key))
    return merged


def without_nulls(value: object) -> object:
    """Refuse every null in a description that lies over nothing.

    Raises:
        CapabilityError: there is one.
    """
    if isinstance(value, Located):
        merge(Located(value.place), value)
    return value


def _remove(merged: Located, key: str, over: Located) -> None:
    if key not in merged:
        raise CapabilityError(
            f"{over.at(key)}: {key!r} has no value, and there is nothing below it that null could remove"
            f"{nearest(key, merged)}"
        )
    del merged[key]
