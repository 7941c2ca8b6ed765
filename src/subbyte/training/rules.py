"""Which gradient each quantizer is trained by."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, StrictStr, ValidationError

from subbyte.calibration import parse_algorithm
from subbyte.dtypes import registered_dtypes
from subbyte.errors import ConfigError, nearest
from subbyte.spec import TensorSpec
from subbyte.training.gradient import Gradient, unlearnable
from subbyte.training.registry import as_gradient

Slot = Literal["weight", "activation"]
Chosen = Annotated[SerializeAsAny[Gradient], BeforeValidator(as_gradient)]


class OpRules(BaseModel):
    """The gradients of one op; None leaves what is asked of all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Chosen | None = None
    activation: Chosen | None = None


class TrainingRules(BaseModel):
    """How the quantizers of a model are trained.

    A gradient is a name, `{name: options}` or a Gradient object. None is `lsq` for what can learn its scale (integer
    types with static ranges and fp32 scales), and `clipped` for anything else.

    Args:
        weight: of all weights.
        activation: of all activations.
        types: by data type, `{"bint1": {"weight": ..., "activation": ...}}`; it beats what is said of all.
        ops: by op name, or a regular expression that matches it whole, `{"weight": ..., "activation": ...}`; later
            entries beat earlier ones, and all beat what is said of types.
        start: the calibration algorithm that finds the scales that learning begins with, as in `mse` (the least
            squared error) or `lsq` (the paper's); None keeps what the configuration's own found.

    Raises:
        ConfigError: an unknown key, gradient or option.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Chosen | None = None
    activation: Chosen | None = None
    types: dict[str, OpRules] = {}
    ops: dict[str, OpRules] = {}
    start: StrictStr | None = "mse"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(f"training: {_explain(error)}") from None
        for pattern in self.ops:
            _check_pattern(pattern)
        for name in self.types:
            if name not in registered_dtypes():
                raise ConfigError(f"training: types: {name!r} is no data type{nearest(name, registered_dtypes())}")
        if self.start is not None:
            parse_algorithm(self.start)

    @classmethod
    def of(cls, asked: Any) -> "TrainingRules":
        """Read rules: themselves, a mapping of the fields, or None for what is usual.

        Raises:
            ConfigError: as for the constructor, or none of these.
        """
        if isinstance(asked, cls):
            return asked
        if asked is None or isinstance(asked, Mapping):
            return cls(**(asked or {}))
        raise ConfigError(
            f"training: TrainingRules or their fields are expected, as in {{'weight': 'lsq'}}, not {asked!r}"
        )

    def gradient(self, op: str, slot: Slot, spec: TensorSpec, *, is_static: bool) -> Gradient:
        """The gradient of the weight or the inputs of an op.

        Raises:
            ConfigError: the one that is asked for has no meaning for it.
        """
        asked = getattr(self.types.get(spec.dtype.name), slot, None) or getattr(self, slot)
        for pattern, rules in self.ops.items():
            if names_op(pattern, op):
                asked = getattr(rules, slot) or asked
        if asked is None:
            return usual_gradient(spec, is_static=is_static)
        why = asked.obstacle(spec)
        if not is_static and asked.learns:
            why = "its range is found anew for each tensor, so that there is none to learn; ask for a static one"
        if why:
            raise ConfigError(f"gradient {asked.name!r} has no meaning for the {slot} of op {op!r} ({spec}): {why}")
        return asked  # type: ignore[no-any-return]

    def check_names(self, ops: list[str]) -> None:
        """Refuse a key that matches no op.

        Raises:
            ConfigError: with the nearest name.
        """
        for pattern in self.ops:
            if not any(names_op(pattern, op) for op in ops):
                raise ConfigError(f"training: ops: {pattern!r} matches no quantized op{nearest(pattern, ops)}")


def names_op(pattern: str, op: str) -> bool:
    """Whether a key of `ops` is an op's name, or a regular expression that matches it whole."""
    return bool(re.fullmatch(pattern, op)) or pattern == op


def usual_gradient(spec: TensorSpec, *, is_static: bool) -> Gradient:
    """The one that is used unasked."""
    learns = is_static and spec.dtype.kind == "integer" and not unlearnable(spec)
    return as_gradient("lsq" if learns else "clipped")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"training: ops: {pattern!r} is neither a name nor a regular expression: {error}") from None


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            allowed = list(OpRules.model_fields if len(problem["loc"]) > 1 else TrainingRules.model_fields)
            key = str(problem["loc"][-1])
            lines.append(f"unknown key {key!r}{nearest(key, allowed)} (allowed: {', '.join(allowed)})")
        elif problem["type"] == "model_type":
            lines.append(f"{path}: {{'weight': ..., 'activation': ...}} is expected, found {problem['input']!r}")
        else:
            lines.append(f"{path}: {problem['msg'].lower()}, found {problem['input']!r}")
    return "; ".join(dict.fromkeys(lines))
