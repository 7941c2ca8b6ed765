"""What a forward of a prepared model is for."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["bypass", "observe", "measure", "quantize"]


@dataclass
class Run:
    """One object for a whole model, shared by its ops and quantizers.

    Args:
        phase: `bypass`: plain float; `observe`: float, statistics collected; `measure`: float, the error that
            each quantizer would make recorded; `quantize`: the quantized model.
    """

    phase: Phase = "bypass"

    @property
    def quantizes(self) -> bool:
        return self.phase == "quantize"
