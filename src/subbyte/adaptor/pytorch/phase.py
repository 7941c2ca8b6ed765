"""What a forward of a prepared model is for."""

from dataclasses import dataclass, field
from typing import Any, Literal

Phase = Literal["bypass", "observe", "measure", "quantize"]


@dataclass
class Run:
    """One object for a whole model, shared by its ops and quantizers.

    Args:
        phase: `bypass`: plain float; `observe`: float, statistics collected; `measure`: float, the error that
            each quantizer would make recorded; `quantize`: the quantized model.
        read_by_code: the quantized modules whose weight the model's own code reads, as in `F.linear(x, table.weight)`.
        trained: whether quantizers learn, or have gradients of their own.
        awaits_first: whether functions are still to be found, in the first forward of a model quantized without data.
    """

    phase: Phase = "bypass"
    read_by_code: list[Any] = field(default_factory=list)
    awaits_first: bool = False
    trained: bool = False

    @property
    def quantizes(self) -> bool:
        return self.phase == "quantize"
