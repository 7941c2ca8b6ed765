"""clip: ranges of activations, narrowed as far as that makes the outputs of ops better."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp, paired
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.obstacles import hidden_input
from subbyte.algorithms.registry import register_algorithm
from subbyte.errors import CalibrationError, RecoveryError
from subbyte.numerics import fake_quantize, scheme_of
from subbyte.spec import QuantParams


@register_algorithm("clip")
class Clip(RecoveryMethod):
    """Choose the range of each static input quantizer by the error that it makes in what the ops behind it give.

    Minimizes `sum |W v(x~) - W x|^norm`, over ranges `max(minimum, -t) .. min(maximum, t)` for t from the larger end of
    what was observed down to nearly nothing. v quantizes, x~ is what the part of the model before, quantized already,
    gives, and x what the float model does. That clipping beats the whole range below eight bits was shown for the error
    of the tensor itself (Banner et al., 2019, section 3; Choukroun et al., 2019, section 3); here it counts as far as
    the op, with its float weight and BatchNorm's factor, lets it through. Where several ops share a quantizer, their
    errors are added, each relative to what the op gives. Quantizers that no op with a weight reads keep their range.

    Args:
        norm: the exponent of the error.
        steps: how many ranges are tried.
    """

    stage: ClassVar[Stage] = Stage.RANGE

    norm: Annotated[float, Field(gt=0)] = 2.0
    steps: Annotated[int, Field(gt=1)] = 25

    def obstacle(self, op: WeightedOp) -> str:
        is_static = any(isinstance(each, ActivationQuantizer) for each in op.input_quantizers)
        return hidden_input(op) if is_static else ""

    def units(self, model: PreparedModel) -> list[str]:
        """The static quantizers at the inputs of weighted ops, in the order these run."""
        static = model.input_quantizers
        keys = [key for name in self.supported(model) for key in model.state.input_keys.get(name, []) if key in static]
        if not keys:
            raise RecoveryError(
                f"recovery method {self.name!r}: no op has a static range of activations; quantize activations, as in "
                "'w4a8'"
            )
        return list(dict.fromkeys(keys))

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        quantizer = model.input_quantizers[unit]
        candidates = self._candidates(quantizer)
        errors = torch.zeros(len(candidates), dtype=torch.float64)
        for name, op in model.ops.items():
            if unit in model.state.input_keys.get(name, []):
                errors += self._errors(model, op, quantizer, candidates)
        quantizer.set_params(candidates[int(errors.argmin())])

    def _candidates(self, quantizer: ActivationQuantizer) -> list[QuantParams]:
        """From the whole range that was observed to a narrow one."""
        statistics = quantizer.statistics
        if statistics is None or statistics.minimum is None or statistics.maximum is None:
            raise CalibrationError(
                f"{quantizer.name} was reached by no calibration batch; add one that takes this path"
            )
        shape = quantizer.params.scale.shape
        low, high = (end.reshape(shape) for end in (statistics.minimum, statistics.maximum))
        largest = torch.maximum(low.abs(), high.abs())
        ends = [largest * (1 - step / self.steps) for step in range(self.steps)]
        scheme = scheme_of(quantizer.spec)
        return [scheme.from_range(torch.maximum(low, -end), torch.minimum(high, end), quantizer.spec) for end in ends]

    def _errors(
        self, model: PreparedModel, op: WeightedOp, quantizer: ActivationQuantizer, candidates: list[QuantParams]
    ) -> Tensor:
        """Of each candidate, relative to what the op gives: [candidates], float64."""
        weight, whole = op.weight, 0.0
        errors = torch.zeros(len(candidates), dtype=torch.float64)
        for x, float_x in _inputs(model, op, quantizer):
            wanted = op.scaled_output(float_x, weight)
            whole += float(wanted.abs().pow(self.norm).sum(dtype=torch.float64))
            for place, params in enumerate(candidates):
                given = op.scaled_output(fake_quantize(x, params, quantizer.spec), weight)
                errors[place] += float((given - wanted).abs().pow(self.norm).sum(dtype=torch.float64))
        return errors / whole if whole else errors


def _inputs(model: PreparedModel, op: WeightedOp, quantizer: ActivationQuantizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each call that the quantizer stands at: the input in the quantized and in the float model."""
    for calls, float_calls in zip(model.quantized_calls(op.name), model.float_calls(op.name), strict=True):  # by batch
        for call, float_call in paired(op.name, calls, float_calls):
            if call.quantizer is quantizer:
                yield call.input.float(), float_call.input.float()
