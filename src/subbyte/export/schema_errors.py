"""What a schema says of a value that does not fit it."""

from pydantic import ValidationError

from subbyte.errors import quoted

_SHOWN = 3  # fields
_LONGEST = 80  # characters of one key


def described(error: ValidationError) -> str:
    """Return the place of the first wrong fields, the value of each in a few characters, and what is allowed."""
    found = error.errors(include_url=False, include_context=False)
    places = [f"{_place(one['loc'])} = {quoted(one['input'])} ({one['msg']})" for one in found[:_SHOWN]]
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(places) + more


def _place(keys: tuple[int | str, ...]) -> str:
    return ".".join(str(key)[:_LONGEST] for key in keys) or "the whole"
