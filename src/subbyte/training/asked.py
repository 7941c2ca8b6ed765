"""What `prepare_qat` was asked beside the configuration: later configurations of the same model go by it, too."""

from dataclasses import dataclass

from torch import nn

from subbyte.adaptor.pytorch.state import state_of
from subbyte.capability import Capability
from subbyte.errors import ModelError
from subbyte.training.rules import TrainingRules


@dataclass(frozen=True)
class Asked:
    """Arguments of `prepare_qat`.

    Args:
        capability: what the ops can do.
        first_last: the precision of the first and last layers.
        rules: which gradient each quantizer has, and where scales begin.
    """

    capability: Capability
    first_last: str | None
    rules: TrainingRules

    def remember(self, model: nn.Module) -> None:
        """Keep it in a prepared model."""
        state_of(model).asked = self

    @staticmethod
    def of(model: nn.Module) -> "Asked":
        """What a model was prepared by.

        Raises:
            ModelError: the model was not made by `prepare_qat`.
        """
        asked = state_of(model).asked
        if not isinstance(asked, Asked):
            raise ModelError("this model is not prepared for training; make it with subbyte.prepare_qat")
        return asked
