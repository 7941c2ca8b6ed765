"""What each data type at each op alone does: to the model's output, for weights and for inputs, or to the loss."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from subbyte.spec import OpConfig, OpKey, TensorSpec
from subbyte.tuning import TuneResult


@dataclass(frozen=True)
class Sensitivities:
    """Of weights or of inputs.

    Args:
        columns: the data types, from narrow to wide; with what else they differ in, where one stands twice.
        rows: for each op its name, and for each column the error or perturbation; None where it was not measured.
        chosen: for each row the number of the column that the best trial has; None where it has none of them.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    chosen: tuple[int | None, ...]


def weight_sensitivities(result: TuneResult) -> Sensitivities:
    """With the weight of an op alone quantized."""
    return _sensitivities(result, result.part_errors, of_weights=True)


def input_sensitivities(result: TuneResult) -> Sensitivities:
    """With the inputs of an op alone quantized."""
    return _sensitivities(result, result.part_errors, of_weights=False)


def weight_perturbations(result: TuneResult) -> Sensitivities:
    """Of the loss, with the weight of an op alone quantized."""
    return _sensitivities(result, result.perturbations, of_weights=True)


def _sensitivities(
    result: TuneResult, found: Mapping[OpKey, Mapping[OpConfig, float]], *, of_weights: bool
) -> Sensitivities:
    measured = {
        key: {part: error for part, error in errors.items() if (part.weight is not None) is of_weights}
        for key, errors in found.items()
    }
    parts = sorted({part for errors in measured.values() for part in errors}, key=_order)
    rows = [(key, errors) for key, errors in measured.items() if errors]
    return Sensitivities(
        tuple(_headings(parts)),
        tuple((key[0], tuple(errors.get(part) for part in parts)) for key, errors in rows),
        tuple(_chosen(result, key, parts, of_weights) for key, _ in rows),
    )


def _chosen(result: TuneResult, key: OpKey, parts: Sequence[OpConfig], of_weights: bool) -> int | None:
    given = result.best.config.op.get(key, OpConfig())
    if given.half is not None:
        part = given
        return parts.index(part) if part in parts else None
    part = OpConfig(weight=given.weight, quant_mode="weight_only") if of_weights else replace(given, weight=None)
    return parts.index(part) if part in parts else None


def _spec(part: OpConfig) -> TensorSpec:
    spec = part.activation if part.weight is None else part.weight
    assert spec is not None  # one of both is what was measured
    return spec


def _order(part: OpConfig) -> tuple[int, str]:
    return _spec(part).dtype.bits, str(part)


def _headings(parts: Sequence[OpConfig]) -> list[str]:
    names = [_spec(part).dtype.name for part in parts]
    count = Counter(names)
    return [name if count[name] == 1 else str(part) for name, part in zip(names, parts, strict=True)]
