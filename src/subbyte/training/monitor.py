"""Telling which quantizer went wrong first, once training has."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
    """Watches the scales that a model learns; `check` once in each training step.

    The range of a scale is from a thousandth of what it is now to a thousand times that. All scales are looked at
    together, which takes a small part of a millisecond.

    Args:
        model: made by `prepare_qat`.
        step: how many steps of training were taken before.

    Attributes:
        departures: every scale that has left its range, in the order in which they did.

    Raises:
        ModelError: the model is not prepared, or learns no scale.
    """

    def __init__(self, model: nn.Module, step: int = 0) -> None:
        state_of(model)
        quantizers = [module for module in model.modules() if isinstance(module, Quantizer)]
        self._scales = {_described(each): each.scale for each in quantizers if "scale" in each.learned}
        if not self._scales:
            raise ModelError("this model learns no scale that could be watched; prepare it with subbyte.prepare_qat")
        self._start = self._now()
        self._outside = torch.zeros_like(self._start, dtype=torch.bool)
        self._step = step
        self.departures: list[Departure] = []

    def check(self, loss: Tensor | float = 0.0) -> None:
        """Look at all scales, after the optimizer's step.

        Args:
            loss: of this step.

        Raises:
            TrainingError: the loss or a scale is not finite; the message names the scale that left its range first.
        """
        self._step += 1
        now = self._now()
        inside = (now >= self._start / WIDEST) & (now <= self._start * WIDEST)
        left = ~inside & ~self._outside
        if bool(left.any()):
            self._note(left, now)
        if not (torch.isfinite(torch.as_tensor(loss)).all() and torch.isfinite(now).all()):
            raise TrainingError(f"training failed in step {self._step}: {self._story()}")

    def _now(self) -> Tensor:
        return torch.cat([scale.detach().flatten() for scale in self._scales.values()])

    def _note(self, left: Tensor, now: Tensor) -> None:
        self._outside |= left
        first = 0
        for name, scale in self._scales.items():
            own = slice(first, first + scale.numel())
            first += scale.numel()
            for index in left[own].nonzero().flatten()[:1].tolist():
                value, start = float(now[own][index]), float(self._start[own][index])
                self.departures.append(Departure(self._step, name, value, start))

    def _story(self) -> str:
        if not self.departures:
            return "the loss is not finite, though every learned scale is in its range; look at the data and the loss"
        more = f" ({len(self.departures) - 1} more followed)" if len(self.departures) > 1 else ""
        return f"{self.departures[0]}{more}; lower the learning rate of the scales, or clip gradients"


def _described(quantizer: Quantizer) -> str:
    return f"the weight of {quantizer.name}" if isinstance(quantizer, WeightQuantizer) else quantizer.name
