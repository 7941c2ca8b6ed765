"""How many signs change while a network of one bit is trained."""

import torch
from torch import Tensor, nn

from subbyte.errors import ModelError
from subbyte.training.binary.weights import binary_modules


class FlipRatio:
    """The share of binary weights whose sign has changed since the last look.

    What stays high late in training does not settle: lower the learning rate, or raise the threshold of `Bop`. The
    ratio of a layer that is at 0 early on says that it does not learn.

    Args:
        model: made by `prepare_qat`.

    Attributes:
        by_op: the share of each op, as of the last look.

    Raises:
        ModelError: the model is not prepared, or has no binary weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = binary_modules(model)
        if not self._modules:
            raise ModelError("this model has no binary weights whose signs could be watched; prepare it with 'w1a1'")
        self._signs = self._now()
        self.by_op: dict[str, float] = dict.fromkeys(self._modules, 0.0)

    def look(self) -> float:
        """The share of all weights; from now on changes are counted anew."""
        now = self._now()
        changed = {name: int((now[name] != self._signs[name]).sum()) for name in now}
        self.by_op = {name: count / max(now[name].numel(), 1) for name, count in changed.items()}
        self._signs = now
        return sum(changed.values()) / max(sum(signs.numel() for signs in now.values()), 1)

    def _now(self) -> dict[str, Tensor]:
        with torch.no_grad():
            return {
                name: module.weight_quantizer.reparametrized(module.weight) >= 0
                for name, module in self._modules.items()
            }
