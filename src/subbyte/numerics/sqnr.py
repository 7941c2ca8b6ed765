"""How much of a signal quantization leaves."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Loss:
    """Power of a signal and of what its approximation adds, summed over as many parts as are added.

    Args:
        power: sum x^2.
        noise: sum (x - x^)^2.
        count: of elements.
    """

    power: float = 0.0
    noise: float = 0.0
    count: int = 0

    def add(self, signal: Tensor, approximation: Tensor) -> None:
        """Take in one part."""
        wide = torch.promote_types(signal.dtype, torch.float32)
        self.power += _power(signal)
        self.noise += _power(signal.to(wide) - approximation.to(wide))
        self.count += signal.numel()

    @property
    def sqnr(self) -> float:
        """The signal-to-quantization-noise ratio 10 log10(power / noise), in decibels.

        Infinity where nothing was lost, minus infinity where there was only zero and noise came.
        """
        if self.noise == 0.0:
            return math.inf
        return 10 * math.log10(self.power / self.noise) if self.power else -math.inf


def _power(x: Tensor) -> float:
    """The sum of squares, in double precision."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


def sqnr(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The signal-to-quantization-noise ratio in decibels, as in `Loss`.

    Args:
        parts: pairs of a signal and its approximation, which together make the whole.
    """
    loss = Loss()
    for signal, approximation in parts:
        loss.add(signal, approximation)
    return loss.sqnr
