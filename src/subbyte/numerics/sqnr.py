"""How much of a signal quantization leaves."""

import math
from collections.abc import Iterable

from torch import Tensor


def sqnr(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The signal-to-quantization-noise ratio 10 log10(sum x^2 / sum (x - x^)^2), in decibels.

    Args:
        parts: pairs of a signal and its approximation, which together make the whole.

    Returns:
        infinity where nothing was lost, minus infinity where there was only zero and noise came.
    """
    power = noise = 0.0
    for signal, approximation in parts:
        power += float(signal.double().square().sum())
        noise += float((signal.double() - approximation).square().sum())
    if noise == 0.0:
        return math.inf
    return 10 * math.log10(power / noise) if power else -math.inf
