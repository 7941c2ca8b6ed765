"""Plain values as JSON, which has no number for what is not finite: that is written as text that `float` reads."""

import json
import math
from typing import Any


def json_text(value: Any, **layout: Any) -> str:
    """Valid JSON; infinity is `"Infinity"`, and so on.

    Args:
        value: of dicts, lists, tuples, texts and numbers.
        layout: as `json.dumps` takes it.
    """
    return json.dumps(_finite(value), allow_nan=False, **layout)


def number(value: float | str | None) -> float | None:
    """A number as `json_text` wrote it."""
    return None if value is None else float(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    # JSON's own module has the names that JavaScript reads too.
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
