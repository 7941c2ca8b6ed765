"""A request for one op, flattened: `{'weight': {'dtype': ['int4']}}` is `{'weight.dtype': ('int4',)}`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from subbyte.capability import FIELDS, TENSORS
from subbyte.dtypes import DataType, dtype, registered_dtypes
from subbyte.errors import ConfigError, DataTypeError, nearest, quoted
from subbyte.spec import Granularity, OpConfig, QuantMode, TensorSpec, check_keys

Values = tuple[Any, ...]
_TENSOR_KEYS = [field.name for field in dataclasses.fields(TensorSpec)]


def parse_fields(value: Any, where: str) -> dict[str, Values]:
    """Read one value of `op_type_dict` or `op_name_dict` that is not a precision's name.

    Args:
        value: `{'weight': {...}, 'activation': {...}, 'output': {...}, 'quant_mode': ...}` or an OpConfig.
        where: begins every message.

    Returns:
        By `tensor.field` and `quant_mode`, the alternatives in the order given; a lone value is one.

    Raises:
        ConfigError: a misspelt key, or a value of the wrong kind.
    """
    if isinstance(value, OpConfig):
        specs = {tensor: spec for tensor in TENSORS if (spec := getattr(value, tensor)) is not None}
        value = value.to_dict() | specs
    check_keys(value, [*TENSORS, "quant_mode"], where)
    fields: dict[str, Values] = {}
    modes = {"": value["quant_mode"]} if "quant_mode" in value else {}
    for tensor in TENSORS:
        if tensor in value:
            spec = value[tensor]
            if isinstance(spec, TensorSpec):
                spec = spec.to_dict() | {"dtype": spec.dtype}
            check_keys(spec, [*_TENSOR_KEYS, "quant_mode"], f"{where}: {tensor}")
            for name, given in spec.items():
                if name == "quant_mode":  # the seed documents write it inside the activation
                    modes[tensor] = given
                else:
                    fields[f"{tensor}.{name}"] = _values(name, given, f"{where}: {tensor}.{name}")
    if modes:
        fields["quant_mode"] = (_mode(modes, where),)
    return fields


def check_registered(data_type: DataType, where: str) -> None:
    """Refuse a data type that its name does not stand for: reports and checkpoints hold the name.

    Raises:
        ConfigError: it is not registered, or its name stands for another one.
    """
    try:
        dtype(data_type)
    except DataTypeError as error:
        raise ConfigError(f"{where}: {error}") from None
    if data_type.name not in registered_dtypes():
        raise ConfigError(
            f"{where}: data type {quoted(data_type.name)} is not registered; give it to register_dtype first"
        )


def _mode(modes: Mapping[str, Any], where: str) -> Any:
    found = list(modes.values())
    if any(mode != found[0] for mode in found):
        raise ConfigError(f"{where}: two quant_modes are named: {', '.join(map(str, found))}")
    allowed = get_args(QuantMode)
    if found[0] not in allowed:
        raise ConfigError(
            f"{where}: quant_mode {quoted(found[0])} is unknown{nearest(str(found[0]), allowed)} "
            f"(allowed: {', '.join(allowed)})"
        )
    return found[0]


def _values(name: str, given: Any, where: str) -> Values:
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not values:
        raise ConfigError(f"{where}: the list is empty; leave the key out to take the default")
    return tuple(_value(name, value, where) for value in values)


def _value(name: str, value: Any, where: str) -> Any:
    if name not in FIELDS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{where}: expected a whole number, found {quoted(value)}")
        return value
    if isinstance(value, DataType):
        check_registered(value, where)
        return value.name
    if name == "granularity":
        try:
            return str(Granularity.parse(value))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected a name or a list of names, found {quoted(value)}")
    return value
