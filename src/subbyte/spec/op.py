"""What one operator is, and what it gets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from subbyte.dtypes import DataType
from subbyte.errors import ConfigError, nearest, quoted, refuses_misspelt
from subbyte.spec.tensor_spec import TensorSpec, check_keys

QuantMode = Literal["static", "dynamic", "weight_only", "quant_aware"]
Role = Literal["weighted", "matmul", "other"]
Position = Literal["first", "last"]

# What a sum may reach on a backend that adds in so many bits.
ACCUMULATORS: dict[str, int] = {f"int{bits}": 2 ** (bits - 1) - 1 for bits in (32, 24, 16)}

_TENSORS = ("weight", "activation", "bias", "output")


@dataclass(frozen=True)
class OpInfo:
    """One operator of a model, as configuration sees it.

    Args:
        name: its path, as in `layer1.0.conv1`; of a functional op its scope and function, as in `layer1.0.add`.
        type: as in `Conv2d` or `add`.
        role: `weighted` (has a weight), `matmul` (multiplies two activations), `other`.
        positions: `first` and `last`, by data flow; empty where no forward was recorded.
        depthwise: a convolution with as many groups as input channels.
        product_positions: `first` and `last` among convolutions, linear maps and matrix products, as recipes mean them:
            before the first and after the last stands no other.
        quantizable: whether a precision can be requested for it; otherwise it always stays in float.
        imagined: whether it stands for ops of its type that no forward has shown.
        consumers: what reads its output, seen through functions that pass codes on: names of ops, and descriptions of
            what is no op; None where no forward was recorded.
    """

    name: str
    type: str
    role: Role
    positions: frozenset[Position] = frozenset()
    depthwise: bool = False
    product_positions: frozenset[Position] = frozenset()
    quantizable: bool = True
    imagined: bool = False
    consumers: frozenset[str] | None = None

    @property
    def key(self) -> tuple[str, str]:
        return (self.name, self.type)


@refuses_misspelt(ConfigError)
@dataclass(frozen=True)
class OpConfig:
    """What one operator gets. A tensor that is None, or of a float dtype, is not quantized.

    Args:
        weight: its weight.
        activation: its inputs.
        bias: fp32 unless said otherwise.
        output: its output, where a backend asks for it.
        quant_mode: when activations get their range: `static` (calibration), `dynamic` (each forward),
            `weight_only` (never: they stay float), `quant_aware` (training).
        accumulator: the width in which a backend sums the products; None where that is not limited.
    """

    weight: TensorSpec | None = None
    activation: TensorSpec | None = None
    bias: TensorSpec | None = None
    output: TensorSpec | None = None
    quant_mode: QuantMode = "static"
    accumulator: str | None = None

    def __post_init__(self) -> None:
        if self.accumulator not in (None, *ACCUMULATORS):
            raise ConfigError(
                f"accumulator {quoted(self.accumulator)} is unknown{nearest(str(self.accumulator), ACCUMULATORS)} "
                f"(allowed: {', '.join(ACCUMULATORS)})"
            )
        for name in _TENSORS:
            spec = getattr(self, name)
            if spec is not None and not isinstance(spec, TensorSpec):
                raise ConfigError(f"{name} must be a TensorSpec, as in TensorSpec('int4'), not {quoted(spec)}")
        if self.quant_mode not in get_args(QuantMode):
            modes = get_args(QuantMode)
            raise ConfigError(
                f"quant_mode {quoted(self.quant_mode)} is unknown{nearest(self.quant_mode, modes)} "
                f"(allowed: {', '.join(modes)})"
            )

    @property
    def calibrates(self) -> bool:
        """Whether the ranges of its inputs come from calibration, to stay or to be trained."""
        return self.quant_mode in ("static", "quant_aware")

    @property
    def is_float(self) -> bool:
        """Whether nothing of the op is quantized."""
        return all(spec is None or spec.is_float for spec in (self.weight, self.activation, self.output))

    @property
    def half(self) -> DataType | None:
        """The float type of 16 bits that the op computes in; None of one that is quantized, or stays as it is."""
        named = [spec.dtype for spec in (self.weight, self.activation) if spec is not None and spec.dtype.is_half]
        return named[0] if named and self.is_float else None

    @property
    def quantizes_inputs(self) -> bool:
        """Whether the op's inputs are quantized: statically, dynamically, or in training."""
        return self.quant_mode != "weight_only" and self.activation is not None and not self.activation.is_float

    @property
    def is_unchanged(self) -> bool:
        """Whether the op stays as it is: neither quantized nor in a float type of 16 bits."""
        return self.is_float and self.half is None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OpConfig":
        """Build from `{'weight': {...}, 'activation': {...}, 'quant_mode': ...}`.

        `quant_mode` inside `activation` is accepted and hoisted.

        Raises:
            ConfigError: an unknown key, or two quant_modes.
        """
        check_keys(values, [*_TENSORS, "quant_mode", "accumulator"], "op configuration")
        given = {name: values[name] for name in _TENSORS if values.get(name) is not None}
        places = [values, *(spec for spec in given.values() if isinstance(spec, Mapping))]
        modes = {str(place["quant_mode"]) for place in places if "quant_mode" in place}
        if len(modes) > 1:
            raise ConfigError(f"op configuration names two quant_modes: {', '.join(sorted(modes))}")
        specs = {name: _tensor_spec(spec) for name, spec in given.items()}
        mode = modes.pop() if modes else "static"
        return cls(**specs, quant_mode=mode, accumulator=values.get("accumulator"))  # type: ignore[arg-type]  # checked

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` gives an equal configuration."""
        specs = {name: getattr(self, name) for name in _TENSORS}
        plain = {name: spec.to_dict() for name, spec in specs.items() if spec is not None}
        limit = {} if self.accumulator is None else {"accumulator": self.accumulator}
        return plain | {"quant_mode": self.quant_mode} | limit

    def with_axes(self, channel_axis: int, group_axis: int) -> "OpConfig":
        """The same configuration with the weight's axis filled in."""
        if self.weight is None:
            return self
        return replace(self, weight=self.weight.with_axis(channel_axis, group_axis))

    def __str__(self) -> str:
        if self.is_float:
            return str(self.half or "fp32")
        parts = [f"w:{self.weight}" if self.weight else "", f"a:{self.activation}" if self.activation else ""]
        limit = f"accumulator:{self.accumulator}" if self.accumulator else ""
        return " ".join(filter(None, [*parts, self.quant_mode, limit]))


def _tensor_spec(values: Any) -> TensorSpec:
    if isinstance(values, TensorSpec):
        return values
    if isinstance(values, Mapping):
        values = {key: value for key, value in values.items() if key != "quant_mode"}
    return TensorSpec.from_dict(values)
