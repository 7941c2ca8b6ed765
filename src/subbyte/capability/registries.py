"""Which names the fields of a tensor's spec may take, asked of whoever registers them."""

from collections.abc import Collection
from typing import get_args

from subbyte.calibration import parse_algorithm, registered_algorithms
from subbyte.dtypes import dtype, registered_dtypes
from subbyte.errors import ConfigError, listing, nearest
from subbyte.numerics import registered_schemes
from subbyte.spec.granularity import Granularity, GranularityKind
from subbyte.spec.tensor_spec import ScaleFormat


def registered(name: str) -> Collection[str]:
    """The names known today for a field: `dtype` (quantized ones), `scheme`, `granularity`, ...

    Those with an argument, such as `per_group(32)`, are known by what stands before it.
    """
    if name == "dtype":
        return [known for known, data_type in registered_dtypes().items() if not data_type.is_float]
    if name == "scheme":
        return tuple(registered_schemes())
    if name == "algorithm":
        return tuple(registered_algorithms())
    return get_args(GranularityKind) if name == "granularity" else get_args(ScaleFormat)


def check_name(field: str, name: str) -> None:
    """Refuse a name that a field of a tensor's spec cannot have on any capability.

    Raises:
        ConfigError, DataTypeError: it is not registered, or its argument is wrong; with the nearest spelling.
    """
    if field == "dtype":
        dtype(name)
    elif field == "algorithm":
        parse_algorithm(name)
    elif field == "granularity":
        Granularity.parse(name)
    elif name not in registered(field):
        known = registered(field)
        raise ConfigError(f"{field} {name!r} is unknown{nearest(name, known)} (known: {listing(known)})")
