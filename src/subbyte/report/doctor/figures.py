"""What is found of one op of a quantized model, as plain data."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class QuantizerFigures:
    """How one quantizer is used by the data that reaches it in the float model.

    Args:
        where: `weight`, `input`, or `input 0`, `input 1`, ...
        dtype, spec: the data type, and all that was asked.
        bits: of a code.
        granularity: as in `per_tensor`.
        is_static: whether the range is fixed: a weight's, or a calibrated one.
        scale: the smallest and the largest scale.
        range: the smallest and the largest value that is representable; None of a user's scheme.
        data: the smallest and the largest value seen.
        range_used: the share of the range, from its lowest to its highest code, between those that are written; None of
            a user's scheme.
        bulk_used: the same without the outermost 0.1 % of the values on either side.
        saturation: the share of values that are clipped; None of a user's scheme.
        codes_used: the share of codes that any value has.
        outliers: the largest magnitude of a channel over that of the median channel: of a weight's output channels, or
            of the last axis of an input; None where that has no meaning.
        sqnr: of a weight itself against the float model's, in decibels; None of an input.
        rounded_sqnr: what that would be were the float weight rounded to the same type.
        noted_sqnr: what it was when the model was quantized: recovery methods may round further off.
    """

    where: str
    dtype: str
    spec: str
    bits: int
    granularity: str
    is_static: bool
    scale: tuple[float, float]
    range: tuple[float, float] | None
    data: tuple[float, float]
    range_used: float | None
    bulk_used: float | None
    saturation: float | None
    codes_used: float
    outliers: float | None = None
    sqnr: float | None = None
    rounded_sqnr: float | None = None
    noted_sqnr: float | None = None

    @property
    def is_weight(self) -> bool:
        return self.where.startswith("weight")


@dataclass(frozen=True)
class Remedy:
    """What may help one op.

    Args:
        methods: names of recovery methods and of calibration algorithms, the first the likeliest; or what else to do.
        because: the figures that speak for it.
    """

    methods: tuple[str, ...]
    because: str

    def __str__(self) -> str:
        *others, last = self.methods
        return f"{', '.join(others)} or {last}: {self.because}" if others else f"{last}: {self.because}"


@dataclass(frozen=True)
class OpComparison:
    """One op of the quantized model against the float model.

    Args:
        name, type: as in `summary`.
        sqnr: of its output in the quantized model, in decibels: all error from the input on; NaN where none is finite.
        weight_error: noise over signal of its output on float inputs, with only its weight quantized; None without one.
        input_error: the same with only its inputs quantized.
        mean_shift: the share of both errors that is a constant for each output channel.
        has_norm: whether it holds a BatchNorm.
        reads_columns: whether its weight multiplies columns of its input, which recovery methods see; not so where rows
            are looked up, and in recurrent layers.
        quantizers: at its weight and inputs.
        calls: compared, in all batches.
        unmet: calls that only one of the models made, or with another shape.
        not_finite: values that are NaN or infinite, in the float model and in the quantized one.
        remedies: proposed, the likeliest first; empty where its own error is small.
    """

    name: str
    type: str
    sqnr: float
    weight_error: float | None
    input_error: float | None
    mean_shift: float
    has_norm: bool = False
    reads_columns: bool = False
    quantizers: tuple[QuantizerFigures, ...] = ()
    calls: int = 0
    unmet: int = 0
    not_finite: tuple[int, int] = (0, 0)
    remedies: tuple[Remedy, ...] = ()

    @property
    def own_error(self) -> float | None:
        """What the op itself adds: noise over signal, by weight and inputs together; None of a float op."""
        parts = [part for part in (self.weight_error, self.input_error) if part is not None]
        return sum(parts) if parts else None

    @property
    def breaks(self) -> bool:
        """Whether it gives NaN or infinity where the float model does not."""
        return self.not_finite[1] > self.not_finite[0]

    @property
    def precision(self) -> str:
        """As in `int4 / uint8`: weight, input."""
        weight, inputs = (self._dtypes(is_weight=side) for side in (True, False))
        return f"{weight or '-'} / {inputs or 'float'}" if weight or inputs else "float"

    def _dtypes(self, *, is_weight: bool) -> str:
        return ", ".join(dict.fromkeys(each.dtype for each in self.quantizers if each.is_weight is is_weight))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"own_error": self.own_error, "precision": self.precision}
