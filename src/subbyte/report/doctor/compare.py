"""compare: both models on the same data, and what that says."""

from dataclasses import replace
from statistics import median
from typing import Any

from torch import nn

from subbyte.adaptor.pytorch.comparison import OpError, QuantizerUse, meet
from subbyte.adaptor.pytorch.splitting import DEFAULT_BATCH_SIZE
from subbyte.adaptor.pytorch.state import state_of
from subbyte.numerics import Loss
from subbyte.report.doctor.comparison import Comparison
from subbyte.report.doctor.figures import OpComparison, QuantizerFigures
from subbyte.report.doctor.remedies import remedies

# An op stands out where its own error is one of these: noise over signal, and times that of the median op of its type.
LARGE_ERROR = 0.01
OUTLYING_ERROR = 4.0


def compare(
    float_model: nn.Module, q_model: nn.Module, data: Any, *, batch_size: int = DEFAULT_BATCH_SIZE
) -> Comparison:
    """Find where a quantized model loses accuracy, and what may help.

    Both models run in eval() on the same batches; neither is changed. For each op:

    * the signal-to-quantization-noise ratio of its output, 10 log10(sum y^2 / sum (y - y')^2), with y of the float
      model and y' of the quantized one: all error from the input on;
    * the error that it adds itself: sum (y - y~)^2 / sum y^2, with y~ its output on the float model's inputs where only
      its weight is quantized, and where only its inputs are;
    * how each of its quantizers is used by the float model's values.

    An op's output is meant with the BatchNorm that it holds, and before an activation function that follows.

    Args:
        float_model: the model that was quantized.
        q_model: prepared or converted, also with `use_kernels`.
        data: as for `quantize`; a few batches do.
        batch_size: as for `quantize`. Dynamic ranges per tensor are those of such batches.

    Returns:
        the ops in the order they run, the first where error jumps, and remedies.

    Raises:
        ModelError: a model is not what it should be, or the two do not belong together.
        CalibrationError: the data is empty, or the models do not run on it.
        ConfigError: batch_size is not a positive integer.
        UnseenOpError: a batch takes a path that no calibration batch took.
    """
    found = meet(float_model, q_model, data, batch_size)
    ops = [_figures(error) for error in found.ops.values()]
    typical = _typical(ops)
    moved_by = tuple(state_of(q_model).moved_by)
    if not moved_by:  # else what ops give is not meant to be what they give in the float model
        ops = [replace(op, remedies=tuple(remedies(op))) if _stands_out(op, typical[op.type]) else op for op in ops]
    output = found.output
    return Comparison(
        tuple(ops),
        _decibels(output.output),
        output.not_finite,
        _first_jump(ops),
        tuple(found.unreached),
        found.samples,
        moved_by,
    )


def _typical(ops: list[OpComparison]) -> dict[str, float]:
    """For each type of op the median of what they add."""
    errors: dict[str, list[float]] = {op.type: [] for op in ops}
    for op in ops:
        errors[op.type] += [] if op.own_error is None else [op.own_error]
    return {kind: median(found or [0.0]) for kind, found in errors.items()}


def _stands_out(op: OpComparison, typical: float) -> bool:
    error = op.own_error or 0.0
    return op.breaks or error >= LARGE_ERROR or error > OUTLYING_ERROR * typical > 0.0


def _first_jump(ops: list[OpComparison]) -> str | None:
    """See Comparison.first_jump; only ops that stand out have remedies."""
    candidates = [op for op in ops if op.remedies]
    largest = max((op.own_error or 0.0 for op in candidates), default=0.0)
    return next((op.name for op in candidates if op.breaks or (op.own_error or 0.0) >= largest / 2), None)


def _figures(error: OpError) -> OpComparison:
    noise = sum(loss.noise for loss in (error.by_weight, error.by_input) if loss is not None)
    return OpComparison(
        name=error.op.name,
        type=error.op.type,
        sqnr=_decibels(error.output),
        weight_error=_relative(error.by_weight),
        input_error=_relative(error.by_input),
        mean_shift=error.shift_power / noise if noise else 0.0,
        has_norm=bool(error.op.norm),
        reads_columns=error.reads_columns,
        quantizers=tuple(_quantizer(name, use, error) for name, use in error.uses.items()),
        calls=error.calls,
        unmet=error.unmet,
        not_finite=error.not_finite,
    )


def _decibels(loss: Loss) -> float:
    """NaN where nothing was finite in both models."""
    return loss.sqnr if loss.count else float("nan")


def _relative(loss: Loss | None) -> float | None:
    """Noise over signal."""
    if loss is None:
        return None
    return loss.noise / loss.power if loss.power else (float("inf") if loss.noise else 0.0)


def _quantizer(where: str, use: QuantizerUse, error: OpError) -> QuantizerFigures:
    spec, weight = use.spec, error.weights.get(where)
    return QuantizerFigures(
        where=where,
        dtype=spec.dtype.name,
        spec=str(spec),
        bits=spec.dtype.bits,
        granularity=str(spec.granularity),
        is_static=weight is not None or use.is_static,
        scale=use.scale,
        range=use.range if use.is_ordered else None,
        data=use.data,
        range_used=use.range_used,
        bulk_used=use.bulk_used,
        saturation=use.saturation,
        codes_used=use.codes_used,
        outliers=weight.spread if weight is not None else use.outliers,
        sqnr=None if weight is None else weight.sqnr,
        rounded_sqnr=None if weight is None else weight.rounded_sqnr,
        noted_sqnr=None if weight is None else weight.noted_sqnr,
    )
