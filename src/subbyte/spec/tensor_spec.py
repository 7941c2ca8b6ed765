"""How one tensor is quantized."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from subbyte.dtypes import DataType, dtype
from subbyte.errors import ConfigError, nearest, quoted, refuses_misspelt
from subbyte.spec.granularity import Granularity

ScaleFormat = Literal["fp32", "fp16", "bf16", "pow2"]


@refuses_misspelt(ConfigError)
@dataclass(frozen=True)
class TensorSpec:
    """How one tensor is quantized; decided before any data is seen.

    Args:
        dtype: a data type or its registered name.
        scheme: `sym`, `asym`, or a registered one.
        granularity: `per_tensor`, `per_channel`, `per_token`, `per_group(n)`.
        axis: the channel axis of `per_channel`, the axis along which the groups of `per_group` run;
            left out, the op decides (for a bare tensor: 0 and 1).
        algorithm: how the range is found; left out, the data type's own.
        scale_format: how scales are stored; `pow2` rounds up to a power of two.
        quant_min, quant_max: a range of codes inside the type's, of an integer type.

    Raises:
        ConfigError: the fields contradict each other.
        DataTypeError: the dtype is unknown.
    """

    dtype: DataType
    scheme: str = "sym"
    granularity: Granularity = Granularity()  # noqa: RUF009 (frozen)
    axis: int | None = None
    algorithm: str = ""
    scale_format: ScaleFormat = "fp32"
    quant_min: int | None = None
    quant_max: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype(self.dtype))
        object.__setattr__(self, "granularity", Granularity.parse(self.granularity))
        object.__setattr__(self, "algorithm", self.dtype.algorithm if self.algorithm in ("", None) else self.algorithm)
        for name in ("scheme", "algorithm"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be a name, not {quoted(getattr(self, name))}")
        for name in ("axis", "quant_min", "quant_max"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"{name} must be a whole number, not {quoted(value)}")
        if self.scale_format not in get_args(ScaleFormat):
            formats = get_args(ScaleFormat)
            raise ConfigError(
                f"scale_format {quoted(self.scale_format)} is unknown{nearest(self.scale_format, formats)} "
                f"(allowed: {', '.join(formats)})"
            )
        if self.dtype.kind == "codebook" and self.scheme == "asym":
            raise ConfigError(f"{self.dtype} is a table of values, which has no zero point: use scheme sym")
        self._check_range()

    def _check_range(self) -> None:
        if self.quant_min is None and self.quant_max is None:
            return
        if self.dtype.kind != "integer":
            raise ConfigError(f"quant_min and quant_max narrow an integer type, not {self.dtype}")
        if not self.dtype.qmin <= self.qmin < self.qmax <= self.dtype.qmax:
            raise ConfigError(
                f"quant_min..quant_max = {self.qmin}..{self.qmax} is not a range inside {self.dtype}'s "
                f"{self.dtype.qmin}..{self.dtype.qmax}"
            )

    @property
    def qmin(self) -> int:
        """The smallest code that may be written."""
        return self.dtype.qmin if self.quant_min is None else self.quant_min

    @property
    def qmax(self) -> int:
        """The largest code that may be written."""
        return self.dtype.qmax if self.quant_max is None else self.quant_max

    @property
    def is_float(self) -> bool:
        """Whether the tensor is left in a float type."""
        return self.dtype.is_float

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TensorSpec":
        """Build from a mapping; unknown keys are refused.

        Raises:
            ConfigError, DataTypeError: as for the constructor.
        """
        check_keys(values, [field.name for field in fields(cls)], "tensor spec")
        if "dtype" not in values:
            raise ConfigError("a tensor spec needs a dtype")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the fields that stand at 'unset'; `from_dict` gives an equal spec."""
        plain: dict[str, Any] = {"dtype": self.dtype.name}
        if self.is_float:
            return plain
        plain |= {"scheme": self.scheme, "granularity": str(self.granularity), "algorithm": self.algorithm}
        optional = {"axis": self.axis, "quant_min": self.quant_min, "quant_max": self.quant_max}
        if self.scale_format != "fp32":
            plain["scale_format"] = self.scale_format
        return plain | {name: value for name, value in optional.items() if value is not None}

    def with_axis(self, channel_axis: int, group_axis: int) -> "TensorSpec":
        """The same spec with the axis filled in where its granularity needs one and none was given."""
        if self.axis is not None or self.granularity.kind not in ("per_channel", "per_group"):
            return self
        return replace(self, axis=channel_axis if self.granularity.kind == "per_channel" else group_axis)

    def __str__(self) -> str:
        if self.is_float:
            return self.dtype.name
        fields = self.to_dict()
        main = [str(fields.pop(name)) for name in ("dtype", "scheme", "granularity", "algorithm")]
        return " ".join([*main, *(f"{name}={value}" for name, value in fields.items())])


def check_keys(values: Mapping[str, Any], allowed: list[str], what: str) -> None:
    """Refuse keys that are not in `allowed`.

    Raises:
        ConfigError: naming the key, the nearest spelling and what is allowed.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{what}: expected a mapping with keys {', '.join(allowed)}, got {quoted(values)}")
    for key in values:
        if key not in allowed:
            raise ConfigError(
                f"{what}: unknown key {quoted(key)}{nearest(key, allowed)} (allowed: {', '.join(allowed)})"
            )
