"""Steps of learned scales that are in proportion to them, for optimizers whose steps have a size of their own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.errors import ConfigError

# Of these a step is about as large as the learning rate, whatever the gradient.
OF_THEIR_OWN_SIZE = (
    torch.optim.Adam,  # AdamW too
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Rprop,
)


class RelativeSteps:
    """Makes each step of an optimizer move the learned scales of a model in proportion to what they are.

    With s a scale as it is computed with, and d the optimizer's own step: `s + s d` in the place of `s + d`. Adam's d
    is about the learning rate, which a scale of 8 bits is smaller than: it would be gone after one step. LSQ's
    gradients are made for SGD (Esser et al., 2020, section 2.2), which at the small rates of fine-tuning needs none of
    this; at large ones, from scratch, scales of 8 bits may run away under SGD too.

    Scales are looked for in each step, so that those that `requantize` brings have it, too.

    Args:
        optimizer: of torch.optim, or any other with step hooks. Its copies have none of them.
        model: made by `prepare_qat`.

    Raises:
        ModelError: the model is not prepared.
        ConfigError: the optimizer has it for this model already.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        state_of(model)
        self._model: nn.Module = model
        others = (getattr(hook, "__self__", None) for hook in optimizer._optimizer_step_pre_hooks.values())
        if any(isinstance(other, RelativeSteps) and other._model is model for other in others):
            raise ConfigError("this optimizer takes relative steps for this model already, and twice is too small")
        self._before: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self._hooks = (optimizer.register_step_pre_hook(self._keep), optimizer.register_step_post_hook(self._shorten))

    def remove(self) -> None:
        """From here on steps are the optimizer's own."""
        for hook in self._hooks:
            hook.remove()

    def _keep(self, *_: Any) -> None:
        quantizers = [module for module in self._model.modules() if isinstance(module, Quantizer)]
        learned = [each for each in quantizers if "scale" in each.learned]
        self._before = {each.scale: (each.scale.detach().clone(), each.current_scale().clone()) for each in learned}

    @torch.no_grad()
    def _shorten(self, *_: Any) -> None:
        for scale, (before, used) in self._before.items():
            scale.sub_(before).mul_(used).add_(used)
        self._before = {}
