"""What a network is quantized to, in words that all libraries have."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Setting:
    """How weights, and activations, are quantized.

    Args:
        weight_bits: of each code.
        group_size: inputs that share a scale; None is one scale for each output.
        symmetric: weights have no zero point.
        activation_bits: of static activations; None leaves them float.
        dynamic: activations get their range, one for each token, as they come.
        wide: layers whose weights have eight bits.
        left_float: layers that are not quantized.
    """

    weight_bits: int
    group_size: int | None = None
    symmetric: bool = True
    activation_bits: int | None = None
    dynamic: bool = False
    wide: tuple[str, ...] = ()
    left_float: tuple[str, ...] = ()

    def bits_of(self, layer: str) -> int:
        """Of a layer's weight."""
        return 8 if layer in self.wide else self.weight_bits

    def replace_layers(self, model: nn.Module, make: Callable[[nn.Module, int], nn.Module]) -> nn.Module:
        """Put another module in the place of each convolution and linear map, given that and its bits."""
        layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
        for name, module in layers:
            if name not in self.left_float:
                parent, _, own = name.rpartition(".")
                setattr(model.get_submodule(parent), own, make(module, self.bits_of(name)))
        return model
