"""What a forward of a prepared model is for."""

from dataclasses import dataclass, field
from typing import Any, Literal

from subbyte.errors import ModelError

Phase = Literal["bypass", "observe", "measure", "quantize", "unfinished"]


@dataclass
class Run:
    """One object for a whole model, shared by its ops and quantizers.

    Args:
        phase: `bypass`: plain float; `observe`: float, statistics collected; `measure`: float, the error that
            each quantizer would make recorded; `quantize`: the quantized model; `unfinished`: none, as what gave it
            another configuration was interrupted.
        read_by_code: the quantized modules whose weight the model's own code reads, as in `F.linear(x, table.weight)`.
        converted: whether the model is converted: its weights are packed, and its quantizers settled.
        trained: whether quantizers learn, or have gradients of their own.
        awaits_first: whether functions are still to be found, in the first forward of a model quantized without data.
    """

    phase: Phase = "bypass"
    read_by_code: list[Any] = field(default_factory=list)
    awaits_first: bool = False
    trained: bool = False
    converted: bool = False

    @property
    def quantizes(self) -> bool:
        """Whether a forward is one of the quantized model.

        Raises:
            ModelError: the model is unfinished.
        """
        self.check_finished()
        return self.phase == "quantize"

    def check_finished(self) -> None:
        """Refuse what is neither one model nor another.

        Raises:
            ModelError: the model is unfinished.
        """
        if self.phase == "unfinished":
            raise ModelError(
                "requantize was interrupted while it changed this model, which is neither what it was nor what was "
                "asked; make it anew, and load what was trained from a checkpoint"
            )
