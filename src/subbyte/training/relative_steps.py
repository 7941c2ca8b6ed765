"""Steps of learned scales that are in proportion to them, for optimizers whose steps have a size of their own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import state_of

# Of these a step is about as large as the learning rate, whatever the gradient.
OF_THEIR_OWN_SIZE = (
    torch.optim.Adam,  # AdamW too
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)


class RelativeSteps:
    """Makes each step of an optimizer move the learned scales of a model in proportion to what they are.

    With s a scale and d the optimizer's own step: `s + |s| d` in the place of `s + d`. Adam's d is about the learning
    rate, which a scale of 8 bits is smaller than: it would be gone after one step. LSQ's gradients are made for SGD
    (Esser et al., 2020, section 2.2), which needs none of this.

    Args:
        optimizer: of torch.optim, or any other with step hooks.
        model: made by `prepare_qat`.

    Raises:
        ModelError: the model is not prepared.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        state_of(model)
        quantizers = [module for module in model.modules() if isinstance(module, Quantizer)]
        self._scales = list(dict.fromkeys(each.scale for each in quantizers if "scale" in each.learned))
        self._before: list[Tensor] = []
        self._hooks = (optimizer.register_step_pre_hook(self._keep), optimizer.register_step_post_hook(self._shorten))

    def remove(self) -> None:
        """From here on steps are the optimizer's own."""
        for hook in self._hooks:
            hook.remove()

    def _keep(self, *_: Any) -> None:
        self._before = [scale.detach().clone() for scale in self._scales]

    @torch.no_grad()
    def _shorten(self, *_: Any) -> None:
        for scale, before in zip(self._scales, self._before, strict=True):
            scale.sub_(before).mul_(before.abs()).add_(before)
