"""A distribution by name."""

from typing import Any

from subbyte.errors import TuningError, nearest
from subbyte.tuning.distributed.executor import Distribution
from subbyte.tuning.distributed.local import Local
from subbyte.tuning.distributed.ray_cluster import Ray
from subbyte.tuning.distributed.shared import Shared

_NAMED: dict[str, type[Shared] | type[Ray]] = {"shared": Shared, "ray": Ray}


def distribution_of(given: Any) -> Distribution:
    """None, `"shared"`, `"ray"`, or one of these with settings of its own, as in `Ray(workers=4)`.

    Raises:
        TuningError: it is none of these.
    """
    if given is None:
        return Local()
    if isinstance(given, Distribution):
        return given
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]()
    close = nearest(given, _NAMED) if isinstance(given, str) else ""
    raise TuningError(f"distributed is 'shared', 'ray', or left out, not {given!r}{close}")
