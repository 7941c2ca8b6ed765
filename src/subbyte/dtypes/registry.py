"""The one place that knows which data types there are, by name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from subbyte.dtypes.data_type import DataType
from subbyte.errors import DataTypeError, listing, nearest, quoted

_REGISTRY: dict[str, DataType] = {}


def register_dtype(data_type: DataType) -> DataType:
    """Make a data type known by its name, everywhere a built-in is; returns it.

    Registering an equal type again changes nothing.

    Raises:
        DataTypeError: the name stands for another type already.
    """
    if not isinstance(data_type, DataType):
        raise DataTypeError(f"register_dtype takes a DataType, not {type(data_type).__name__}")
    _check_name(data_type)
    return _REGISTRY.setdefault(data_type.name, data_type)


def _check_name(data_type: DataType) -> None:
    known = _REGISTRY.get(data_type.name, data_type)
    if known != data_type:
        raise DataTypeError(
            f"data type {quoted(data_type.name)}: the name is taken by {known.to_dict()}, and a data type cannot "
            "change within a process; choose another name, or restart Python where you have edited a type of your own"
        )


@contextmanager
def all_or_none() -> Iterator[None]:
    """While it is open data types may be registered; where it ends in an error none of them stays."""
    before = dict(_REGISTRY)
    try:
        yield
    except BaseException:
        for name in _REGISTRY.keys() - before.keys():
            del _REGISTRY[name]
        raise


def dtype(name: str | DataType) -> DataType:
    """The registered data type of that name (a DataType is returned as it is, registered or not).

    Raises:
        DataTypeError: no such name (the message lists those there are), or a DataType of a name that stands
            for another one: configurations, reports and checkpoints hold the name.
    """
    if isinstance(name, DataType):
        _check_name(name)
        return name
    if not isinstance(name, str) or name not in _REGISTRY:
        raise DataTypeError(
            f"unknown data type {quoted(name)}{nearest(name, _REGISTRY)} (known: {listing(_REGISTRY)}); "
            "add your own with register_dtype or a capability file's dtypes"
        )
    return _REGISTRY[name]


def registered_dtypes() -> Mapping[str, DataType]:
    """All registered types by name, in the order they were registered."""
    return dict(_REGISTRY)


def _built_in() -> Iterator[DataType]:
    for bits in range(1, 9):
        yield DataType(f"int{bits}", bits=bits, signed=True)
        yield DataType(f"uint{bits}", bits=bits, signed=False)
    yield DataType("bint1", values=(-1.0, 1.0), algorithm="mean_abs")
    yield DataType("ternary", values=(-1.0, 0.0, 1.0), algorithm="twn")
    yield DataType("nf4", values=_normal_float(4))
    magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    yield DataType("fp4_e2m1", values=magnitudes + tuple(-value for value in magnitudes))
    yield DataType("fp32", bits=32)
    yield DataType("bf16", bits=16)
    yield DataType("fp16", bits=16)


def _normal_float(bits: int) -> tuple[float, ...]:
    """Quantiles of the normal distribution, scaled to [-1, 1], with an exact zero.

    QLoRA (Dettmers et al., 2023), section 3: 2^(bits-1) negative levels and zero, one more positive
    level than negative, the outermost probability being the mean of 1/32 and 1/30 from the end.
    """
    from statistics import NormalDist

    half = 1 << (bits - 1)
    outer = 1.0 - 0.5 * (1.0 / (2 * (2 * half)) + 1.0 / (2 * (2 * half - 1)))
    quantile = NormalDist().inv_cdf

    def side(levels: int) -> list[float]:
        return [quantile(outer + (0.5 - outer) * index / levels) for index in range(levels)]

    positive, negative = side(half), side(half - 1)
    top = positive[0]
    return (*(-value / top for value in negative), 0.0, *(value / top for value in reversed(positive)))


for _data_type in _built_in():
    register_dtype(_data_type)
