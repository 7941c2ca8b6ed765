"""auto: methods chosen by what the model and the calibration data show."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Generator

from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import as_methods, register_algorithm
from subbyte.errors import RecoveryError

ENOUGH = 30.0  # dB; a weight or an input of seven bits or more reaches this SQNR
POOR = 10.0  # dB; a weight of two bits, and of three bits with one scale per channel, stays below this SQNR
OUTLIERS = 20.0  # largest channel over the median channel
_STEP_COST = 6.0  # time of a learning step of all blocks over the time of a forward with as many samples
_SPEED = 4e10  # multiply-accumulates per second of two cores
_CALL = 5e-5  # seconds per call of an op, however small
_LEAST_STEPS, _MOST_STEPS = 100, 600  # twice as many gain nothing on ResNet-20 and ResNet-32
_MOST_PER_MINUTE = 400  # steps: those of a small network take longer than the estimate


@register_algorithm("auto")
class Auto(RecoveryMethod):
    """Choose recovery methods and their effort.

    * `smoothquant` if static inputs of linear layers have channels far beyond the others, and an op before them can
      take the factor.
    * If weights or inputs lose much (SQNR below 30 dB): `reconstruct` with as many steps as the time allows. `gptq` if
      that is below 100 steps, or if activations stay float and every weight keeps an SQNR of at least 10 dB. `hqq`
      without data.
    * `bias_correction` if there is data and nothing was reconstructed.

    Args:
        minutes: Time that the chosen methods may take on two cores. Default: 5. It is estimated from the number of ops
            and their multiply-accumulates, at 40 billion per second, so a request gives the same model on every
            machine.
    """

    stage: ClassVar[Stage] = Stage.FLOAT
    needs_data: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    minutes: Annotated[float, Field(gt=0)] = 5.0

    def chosen(self, model: PreparedModel) -> Sequence[RecoveryMethod]:
        return as_methods([{name: {**options, "unsupported": "skip"}} for name, options in self._choose(model)])

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        raise AssertionError("what was chosen runs in its place")

    def _choose(self, model: PreparedModel) -> Iterator[tuple[str, dict[str, Any]]]:
        if not (model.ops or model.projections):
            raise RecoveryError("recovery method 'auto': the model has no quantized weight")
        worst = min([*model.state.weight_sqnr.values(), *model.state.activation_sqnr.values()])
        loses = worst < ENOUGH
        if not model.batches:
            if loses:
                yield "hqq", {}
            return
        if model.input_quantizers and _has_outliers(model):
            yield "smoothquant", {}
        steps = self._steps(model)
        learns = worst < (ENOUGH if model.input_quantizers else POOR)
        if learns and steps >= _LEAST_STEPS:
            yield (
                "reconstruct",
                {"steps": min(steps, _MOST_STEPS, max(_LEAST_STEPS, int(_MOST_PER_MINUTE * self.minutes)))},
            )
            return
        if loses:
            yield "gptq", {}
        yield "bias_correction", {}

    def _steps(self, model: PreparedModel) -> int:
        """Return how many steps of reconstruction the time allows."""
        ops = list(model.state.graph)
        seconds = 32 * sum(op.macs for op in ops) / _SPEED + _CALL * len(ops)
        return int(60 * self.minutes / (seconds * _STEP_COST))


def _has_outliers(model: PreparedModel) -> bool:
    """Whether an input of a linear map has a channel far beyond the typical one."""
    return any(_spread(model, name) > OUTLIERS for name, op in model.ops.items() if op.type in ("Linear", "Conv1D"))


def _spread(model: PreparedModel, name: str) -> float:
    calls = next(model.float_calls(name))
    if not calls:
        return 0.0
    largest = torch.stack([call.input.abs().flatten(0, -2).amax(0) for call in calls]).amax(0)
    typical = float(largest.median())
    return float(largest.max()) / typical if typical > 0 else 0.0
