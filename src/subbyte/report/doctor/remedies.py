"""What may help an op whose error is large: a table of small rules, each of which reads an op's figures."""

from collections.abc import Callable, Iterator
from math import log10

from subbyte.report.doctor.figures import OpComparison, QuantizerFigures, Remedy

Rule = Callable[[OpComparison], Remedy | None]

MUCH_SATURATION = 0.01  # of the values
LITTLE_RANGE = 0.5  # of the range
MANY_TIMES = 10.0  # the median channel
MUCH_SHIFT = 0.25  # of the error
FEW_BITS = 4
VERY_FEW_BITS = 2  # `mse` clips 1 to 2 % of a ResNet's activations at 2 bits, 0.5 % at 3
DECIBELS_LOST = 10.0
DECIBELS_UNEXPLAINED = 25.0
_LINEAR = ("Linear", "Conv1D")


def remedies(op: OpComparison) -> Iterator[Remedy]:
    """Those of all rules that fit, in the order of the table."""
    found = [remedy for rule in RULES if (remedy := rule(op)) is not None]
    yield from found or [Remedy(("a wider type",), "nothing in its figures stands out")]


def breaks(op: OpComparison) -> Remedy | None:
    """It gives what is not finite."""
    if not op.breaks:
        return None
    return Remedy(
        ("fp32",), f"{op.not_finite[1]:,} values are NaN or infinite, in the float model {op.not_finite[0]:,}"
    )


def weight_is_another(op: OpComparison) -> Remedy | None:
    """The weight is much further from the float one than rounding makes it, whichever way each value is rounded."""
    for each in _weights(op):
        now, rounded = each.sqnr, each.rounded_sqnr
        if now is None or rounded is None:
            continue
        if now < min(rounded, rounded if each.noted_sqnr is None else each.noted_sqnr) - DECIBELS_LOST:
            said = f"its {each.where} is {now:.1f} dB from the float model's, and rounding that leaves {rounded:.1f} dB"
            return Remedy(("quantize again",), f"{said}: it was trained or rescaled since, or is of another model")
    return None


def bias_is_another(op: OpComparison) -> Remedy | None:
    """With its quantized weight the op errs by far more than that weight does: the rest is bias, or BatchNorm."""
    known = [each.sqnr for each in _weights(op) if each.sqnr is not None]
    if not known or not op.reads_columns or not op.weight_error:
        return None
    if -10 * log10(op.weight_error) < min(known) - DECIBELS_UNEXPLAINED:
        rest = "bias or BatchNorm" if op.has_norm else "bias"
        said = f"{_percent(op.weight_error)} error by a weight that is {min(known):.1f} dB from the float model's"
        return Remedy(("quantize again",), f"{said}: its {rest} is not the float model's")
    return None


def range_is_too_wide(op: OpComparison) -> Remedy | None:
    """The range is fixed far above all data."""
    for each in op.quantizers:
        if each.is_static and _dominates(op, each) and each.range_used is not None and each.range_used < LITTLE_RANGE:
            return Remedy(
                ("calibrate again", *(("minmax",) if each.is_weight else _if_seen(op, "clip"))),
                f"the data uses {each.range_used:.0%} of the range of its {each.where} ({_span(each)})",
            )
    return None


def range_is_too_narrow(op: OpComparison) -> Remedy | None:
    """Much is clipped, and not because a calibration method chose to clip for so few bits."""
    for each in op.quantizers:
        is_choice = each.bits <= (FEW_BITS if each.is_weight else VERY_FEW_BITS)
        if _dominates(op, each) and not is_choice and (each.saturation or 0.0) > MUCH_SATURATION:
            names = ("minmax", *(() if each.is_weight else _if_seen(op, "clip", "reconstruct")))
            return Remedy(names, f"{each.saturation:.1%} of its {each.where} is clipped ({_span(each)})")
    return None


def input_channels_differ(op: OpComparison) -> Remedy | None:
    """A few channels of a linear layer's input are far larger than the others, which share their scale."""
    for each in _inputs(op):
        if op.type in _LINEAR and _dominates(op, each) and each.outliers is not None and each.outliers >= MANY_TIMES:
            return Remedy(
                ("smoothquant", "rotate"), f"one channel of its input is {each.outliers:.0f} times the median channel"
            )
    return None


def input_has_outliers(op: OpComparison) -> Remedy | None:
    """Nearly all values lie in a small part of the range, and hardly any are clipped."""
    for each in _inputs(op):
        if not (each.is_static and _dominates(op, each)) or each.bulk_used is None or each.range_used is None:
            continue
        if each.range_used >= LITTLE_RANGE and each.bulk_used < LITTLE_RANGE * each.range_used:
            said = f"all but 0.2 % of its {each.where} lie in {each.bulk_used:.0%} of the range"
            # What a function is given is often a residual sum, whose few large values carry most of it.
            return Remedy(_if_seen(op, "clip", "percentile", "kl") or ("a wider type", "percentile", "kl"), said)
    return None


def weight_channels_differ(op: OpComparison) -> Remedy | None:
    """One scale serves output channels of very different size."""
    for each in _weights(op):
        if each.granularity == "per_tensor" and each.outliers is not None and each.outliers >= MANY_TIMES:
            return Remedy(
                ("per_channel", "equalize"),
                f"its largest output channel is {each.outliers:.0f} times the median one, and all share a scale",
            )
    return None


def weight_has_few_bits(op: OpComparison) -> Remedy | None:
    """The weight's rounding dominates."""
    for each in _weights(op):
        if _dominates(op, each) and each.bits <= FEW_BITS:
            linear_only = op.type in _LINEAR and not _inputs(op)
            names = (
                ("gptq", "awq", "hqq") if linear_only else _if_seen(op, "reconstruct", "gptq", "adaround") or ("hqq",)
            )
            return Remedy((*names, "a wider type"), f"{_percent(op.weight_error)} error by a weight of {each.dtype}")
    return None


def input_has_few_bits(op: OpComparison) -> Remedy | None:
    """The inputs' rounding dominates."""
    for each in _inputs(op):
        if _dominates(op, each) and each.bits <= FEW_BITS:
            return Remedy(
                (*_if_seen(op, "reconstruct"), "a wider type"),
                f"{_percent(op.input_error)} error by inputs of {each.dtype}",
            )
    return None


def output_is_shifted(op: OpComparison) -> Remedy | None:
    """Much of the error is a constant for each channel."""
    if not op.reads_columns or op.weight_error is None or op.mean_shift < MUCH_SHIFT:
        return None
    names = ("bias_correction", "batch_norm") if op.has_norm else ("bias_correction",)
    return Remedy(names, f"{op.mean_shift:.0%} of its error is a shift of the channels' means")


# The first that fits is proposed first.
RULES: tuple[Rule, ...] = (
    breaks,
    range_is_too_wide,
    weight_is_another,
    bias_is_another,
    range_is_too_narrow,
    weight_channels_differ,
    input_channels_differ,
    input_has_outliers,
    weight_has_few_bits,
    input_has_few_bits,
    output_is_shifted,
)


def _weights(op: OpComparison) -> list[QuantizerFigures]:
    return [each for each in op.quantizers if each.is_weight]


def _inputs(op: OpComparison) -> list[QuantizerFigures]:
    return [each for each in op.quantizers if not each.is_weight]


def _if_seen(op: OpComparison, *methods: str) -> tuple[str, ...]:
    """Methods that see what a weight is multiplied by, where they do."""
    return methods if op.reads_columns else ()


def _dominates(op: OpComparison, quantizer: QuantizerFigures) -> bool:
    """Whether the larger part of the op's error is on this side: weight or inputs."""
    weight, inputs = op.weight_error or 0.0, op.input_error or 0.0
    return weight >= inputs if quantizer.is_weight else inputs > weight


def _span(quantizer: QuantizerFigures) -> str:
    if quantizer.range is None:
        return f"data {quantizer.data[0]:.3g} to {quantizer.data[1]:.3g}"
    low, high = quantizer.range
    return f"{low:.3g} to {high:.3g}, data {quantizer.data[0]:.3g} to {quantizer.data[1]:.3g}"


def _percent(error: float | None) -> str:
    return f"{error or 0.0:.1%}"
