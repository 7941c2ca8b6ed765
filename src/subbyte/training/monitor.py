"""Telling which quantizer went wrong first, once training has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.weight import WeightQuantizer
from subbyte.errors import ModelError, TrainingError

# Times what a scale began with, and as a part of it: where a quantizer begins to hold it at its smallest.
WIDEST = 1e3


@dataclass(frozen=True)
class Departure:
    """A scale that left its range.

    Args:
        step: of training, whose check found it, counted from 1.
        quantizer: what it quantizes, in words.
        scale: its value then.
        start: what it was when the monitor was made.
    """

    step: int
    quantizer: str
    scale: float
    start: float

    def __str__(self) -> str:
        where = f"the scale of {self.quantizer} left its range in step {self.step}"
        return f"{where}: it is {self.scale:.3g}, and began as {self.start:.3g}"


class RangeMonitor:
    """Watches the scales that a model learns, and its float parameters; `check` once in each training step.

    The range of a scale is from a thousandth of what it is now to a thousand times that. Weights, and whatever else is
    not frozen, are to be finite: a sign tells nothing of a NaN, so that with one bit the loss may stay finite. All
    scales are looked at together, and the rest is read once.

    Args:
        model: made by `prepare_qat`.
        step: how many steps of training were taken before.

    Attributes:
        departures: every scale that has left its range, in the order in which they did.

    Raises:
        ModelError: the model is not prepared for training.
    """

    def __init__(self, model: nn.Module, step: int = 0) -> None:
        if not state_of(model).run.trained:
            raise ModelError("this model is not prepared for training; make it with subbyte.prepare_qat")
        quantizers = [module for module in model.modules() if isinstance(module, Quantizer)]
        # By no name: parts of two LSTMs have the same ones.
        self._scales = [(_described(each), each.scale) for each in quantizers if "scale" in each.learned]
        self._weighted = [module for module in model.modules() if isinstance(module, PreparedWeighted)]
        self._others = list(_others(model, {id(module.weight) for module in self._weighted}))
        self._start = self._now()
        self._outside = torch.zeros_like(self._start, dtype=torch.bool)
        self._step = step
        self._lost = dict.fromkeys(self._lost_values(), step)
        self.departures: list[Departure] = []

    def check(self, loss: Tensor | float = 0.0) -> None:
        """Look at all scales and parameters, after the optimizer's step.

        Args:
            loss: of this step.

        Raises:
            TrainingError: the loss, a scale or a parameter is not finite; the message names what went wrong first.
        """
        self._step += 1
        now = self._now()
        inside = (now >= self._start / WIDEST) & (now <= self._start * WIDEST)
        left = ~inside & ~self._outside
        if bool(left.any()):
            self._note(left, now)
        self._lost = dict.fromkeys(self._lost_values(), self._step) | self._lost
        is_finite = bool(torch.isfinite(torch.as_tensor(loss)).all())
        if not (is_finite and not self._lost and torch.isfinite(now).all()):
            raise TrainingError(f"training failed in step {self._step}: {self._story(is_finite)}")

    def _now(self) -> Tensor:
        scales = [scale.detach().flatten() for _, scale in self._scales]
        return torch.cat(scales) if scales else torch.zeros(0)

    def _lost_values(self) -> list[str]:
        """Which weights and other parameters hold NaN or infinity."""
        weights = [(_described(module.weight_quantizer), module.weight) for module in self._weighted]
        # One that is frozen goes nowhere, and may be a mask of infinities.
        values = [*weights, *((name, value) for name, value in self._others if value.requires_grad)]
        lost = (~torch.isfinite(_sums([value for _, value in values]))).nonzero().flatten().tolist()
        return [values[index][0] for index in lost]

    def _note(self, left: Tensor, now: Tensor) -> None:
        self._outside |= left
        first = 0
        for name, scale in self._scales:
            own = slice(first, first + scale.numel())
            first += scale.numel()
            for index in left[own].nonzero().flatten()[:1].tolist():
                value, start = float(now[own][index]), float(self._start[own][index])
                self.departures.append(Departure(self._step, name, value, start))

    def _story(self, is_finite: bool) -> str:
        """What went wrong first; `is_finite`: whether the loss of this step is."""
        # Where the loss is not finite, its gradients have in this very step made everything else so.
        departures = [each for each in self.departures if is_finite or each.step < self._step]
        lost = [(name, step) for name, step in self._lost.items() if is_finite or step < self._step]
        if departures and not any(step < departures[0].step for _, step in lost):
            more = f" ({len(departures) - 1} more followed)" if len(departures) > 1 else ""
            return f"{departures[0]}{more}; lower the learning rate of the scales, or clip gradients"
        if lost:
            name, step = min(lost, key=lambda each: each[1])
            more = f" ({len(lost) - 1} more with it)" if len(lost) > 1 else ""
            return f"{name} holds NaN or infinity since step {step}{more}; lower the learning rate, or clip gradients"
        return "the loss is not finite, though every learned scale was in its range; look at the data and the loss"


def _others(model: nn.Module, weights: set[int]) -> Iterator[tuple[str, Tensor]]:
    """The float parameters that are neither weights, told by their `id`, nor learned by a quantizer; each described."""
    learned = {id(own) for each in model.modules() if isinstance(each, Quantizer) for own in each.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and id(parameter) not in weights | learned:
            owner, _, kind = name.rpartition(".")
            yield f"the {kind} of {owner or 'the model'}", parameter


def _sums(tensors: Sequence[Tensor]) -> Tensor:
    """For each a number that is finite where all its values are, one after another [n] (fp32)."""
    # Of a sharded one the own part: a process that fails ends the others.
    own = [each.to_local() if hasattr(each, "to_local") else each for each in (one.detach() for one in tensors)]
    return torch.stack([each.sum(dtype=torch.float32) for each in own]) if own else torch.zeros(0)


def _described(quantizer: Quantizer) -> str:
    return f"the weight of {quantizer.name}" if isinstance(quantizer, WeightQuantizer) else quantizer.name
