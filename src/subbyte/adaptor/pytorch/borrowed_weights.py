"""A copy of a model that uses the original's weights until packed ones take their place."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.holders import other_holders
from subbyte.adaptor.pytorch.trace import op_weights


@dataclass(frozen=True)
class BorrowedWeights:
    """The weights of ops that a copy shares with its original; they may be read and replaced, but not written.

    Args:
        model: The copy.
        weights: The original's weights, by the `id` of the copy's parameter that shares their memory.
        parameters: The copy's parameters; kept here so that no other object gets the `id` of one.
    """

    model: nn.Module
    weights: Mapping[int, nn.Parameter]
    parameters: tuple[nn.Parameter, ...]

    def give_back(self) -> None:
        """Copy each weight that the model still uses: from now on it shares nothing with the original."""
        staying = {id(parameter) for parameter in self.model.parameters()}
        own = {key: copy.deepcopy(weight) for key, weight in self.weights.items() if key in staying}
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                module._parameters[name] = own.get(id(parameter), parameter)
            if isinstance(module, nn.RNNBase):
                module._init_flat_weights()  # a list of its own parameters
        for holder in other_holders(self.model, own):
            holder.exchange(own)


def borrow_weights(model: nn.Module) -> BorrowedWeights:
    """Copy a model except for the weights of its ops.

    Raises:
        ModelError: the model cannot be copied.
    """
    weights: dict[int, Any] = {id(weight): weight for weight in op_weights(model)}
    shared = {key: nn.Parameter(_detached(weight), weight.requires_grad) for key, weight in weights.items()}
    borrowed = {id(shared[key]): weight for key, weight in weights.items()}
    return BorrowedWeights(copied(model, dict(shared)), borrowed, tuple(shared.values()))


def _detached(weight: Tensor) -> Tensor:
    """The weight's values without a copy; a tensor of inference mode is copied, as no parameter can be made of it."""
    return weight.detach().clone() if weight.is_inference() else weight.detach()
