"""The error of one op, summed over all its calls."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.comparison.quantizer_use import QuantizerUse
from subbyte.adaptor.pytorch.graph import Op
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.numerics import Loss


@dataclass(frozen=True)
class WeightChannels:
    """What tells a weight whose quantization is hard from others.

    Args:
        sqnr: of the weight itself against the float model's, in decibels.
        rounded_sqnr: what that is where the float weight is rounded to the same type, by the type's own algorithm.
        noted_sqnr: what it was when the model was quantized, recovery methods included.
        spread: the largest magnitude of an output channel over that of the median channel.
    """

    sqnr: float
    rounded_sqnr: float
    noted_sqnr: float | None
    spread: float


@dataclass
class Shift:
    """The mean of an error for each output channel.

    Args:
        total: of the error: float64, [channels]; None before the first call.
        count: of values in each channel.
    """

    total: Tensor | None = None
    count: int = 0

    def add(self, error: Tensor, axis: int) -> None:
        """Take in the error of one call; `axis` is that of the channels, counted from the last."""
        if error.numel() and error.ndim >= -axis:
            by_channel = error.double().movedim(axis, -1).flatten(0, -2) if error.ndim > 1 else error.double()[None]
            total = by_channel.sum(0).cpu()
            self.total = total if self.total is None else self.total + total
            self.count += len(by_channel)

    @property
    def mean(self) -> Tensor:
        """For each channel (float64)."""
        return torch.zeros(()) if self.total is None else self.total / self.count


@dataclass
class OpError:
    """What one op of a quantized model loses against the float model.

    Args:
        op: as recorded.
        output: the quantized model's output against the float model's.
        by_weight: the op's output on float inputs with only the weight quantized; None without a quantized weight.
        by_input: the same with only the inputs quantized; None where no quantizer stands at them.
        weight_shift, input_shift: the means of these two errors.
        uses: of each quantizer, by where it stands: `weight`, `input 0`, ...
        weights: by the same names.
        reads_columns: whether its weight multiplies columns of its input, which recovery methods see.
        calls: met in both models.
        unmet: calls of one model that have no counterpart of the same shape in the other.
        not_finite: values that are NaN or infinite in the float model, and in the quantized one.
    """

    op: Op
    output: Loss = field(default_factory=Loss)
    by_weight: Loss | None = None
    by_input: Loss | None = None
    weight_shift: Shift = field(default_factory=Shift)
    input_shift: Shift = field(default_factory=Shift)
    uses: dict[str, QuantizerUse] = field(default_factory=dict)
    weights: dict[str, WeightChannels] = field(default_factory=dict)
    reads_columns: bool = False
    calls: int = 0
    unmet: int = 0
    not_finite: tuple[int, int] = (0, 0)

    def add_call(self, expected: list[Tensor], got: list[Tensor]) -> None:
        """Take in the outputs of one call in both models."""
        if [x.shape for x in expected] != [x.shape for x in got]:
            self.unmet += 1
            return
        self.calls += 1
        for x, y in zip(expected, got, strict=True):
            wrong = _not_finite(x, y)
            self.not_finite = (self.not_finite[0] + wrong[0], self.not_finite[1] + wrong[1])
            add_finite(self.output, x, y)

    def add_weight_alone(self, expected: Any, got: Any, axis: int) -> None:
        """Take in the output of the op on float inputs with only the weight quantized."""
        self.by_weight = self.by_weight or Loss()
        _add(self.by_weight, self.weight_shift, expected, got, axis)

    def add_inputs_alone(self, expected: Any, got: Any, axis: int) -> None:
        """Take in the output of the op with only the inputs quantized."""
        self.by_input = self.by_input or Loss()
        _add(self.by_input, self.input_shift, expected, got, axis)

    @property
    def shift_power(self) -> float:
        """What of the power of both errors together is constant: sum over channels of count * mean^2."""
        count = max(self.weight_shift.count, self.input_shift.count)
        return count * float((self.weight_shift.mean + self.input_shift.mean).square().sum())


def _add(loss: Loss, shift: Shift, expected: Any, got: Any, axis: int) -> None:
    pairs = list(zip(floats_in(expected), floats_in(got), strict=True))
    for x, y in pairs:
        add_finite(loss, x, y)
    for x, y in pairs[:1]:
        shift.add((y.double() - x).nan_to_num(0.0, 0.0, 0.0), axis)


def floats_in(tree: Any) -> list[Tensor]:
    """The floating-point tensors in what an op gives."""
    return [x for x in tensors_in(tree) if x.is_floating_point()]


def add_finite(loss: Loss, signal: Tensor, approximation: Tensor) -> None:
    """Take in where both are finite."""
    finite = signal.isfinite() & approximation.isfinite()
    if not bool(finite.all()):
        signal, approximation = signal[finite], approximation[finite]
    loss.add(signal, approximation)


def _not_finite(x: Tensor, y: Tensor) -> tuple[int, int]:
    """How many values of each are not finite; an infinity that both have is a mask's."""
    masked = x.isinf() & (x == y)
    return int((~x.isfinite() & ~masked).sum()), int((~y.isfinite() & ~masked).sum())


def spread(weight: Tensor, channel_axis: int) -> float:
    """The largest magnitude of an output channel over that of the median channel that is not all zero."""
    peaks = weight.detach().float().abs().movedim(channel_axis, 0).flatten(1).amax(1)
    peaks = peaks[peaks > 0]
    return float(peaks.max() / peaks.median()) if len(peaks) else 1.0
