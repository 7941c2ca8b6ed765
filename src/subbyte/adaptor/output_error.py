"""How far a quantized model's outputs are from the float model's."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class OutputError:
    """Of one configuration, on calibration data.

    Args:
        squared: the squared difference over the squared float outputs.
        deviation: [n], fp32: the difference between the outputs and the float ones, each sample's of length one, all
            over the root of their number. It does not see that outputs shrink, which narrow weights make them do and
            which changes no choice of a class. Deviations of several ops add up, as long as they are small.
    """

    squared: float
    deviation: NDArray[np.float32]

    @property
    def angle(self) -> float:
        """One minus the cosine between a sample's output and the float one, on average."""
        return float(np.square(self.deviation, dtype=np.float64).sum() / 2)
