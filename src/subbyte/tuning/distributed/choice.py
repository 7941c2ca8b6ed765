"""A distribution by name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from subbyte.errors import TuningError, nearest
from subbyte.tuning.distributed.executor import Distribution
from subbyte.tuning.distributed.local import Local
from subbyte.tuning.distributed.ray_cluster import Ray
from subbyte.tuning.distributed.shared import Shared

_NAMED: dict[str, type[Shared] | type[Ray]] = {"shared": Shared, "ray": Ray}


def distribution_of(given: Any) -> Distribution:
    """None, `"shared"`, `"ray"`, or one of these with settings: `Ray(workers=4)`, or `{"ray": {"workers": 4}}`.

    Raises:
        TuningError: it is none of these, or has no such settings.
    """
    if given is None:
        return Local()
    if isinstance(given, Distribution):
        return given
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]()
    if isinstance(given, Mapping) and len(given) == 1 and (name := next(iter(given))) in _NAMED:
        return _with_settings(name, given[name])
    close = nearest(given, _NAMED) if isinstance(given, str) else ""
    raise TuningError(f"distributed is 'shared', 'ray', or left out, not {given!r}{close}")


def _with_settings(name: str, settings: Any) -> Distribution:
    known = [each.name for each in fields(_NAMED[name])]
    among = f"(known: {', '.join(known)})"
    if not isinstance(settings, Mapping):
        raise TuningError(f"distributed: {name!r} takes settings by name {among}, not {settings!r}")
    for unknown in settings.keys() - known:
        raise TuningError(f"distributed: {name!r} has no setting {unknown!r}{nearest(str(unknown), known)} {among}")
    return _NAMED[name](**settings)
