"""LSQ as it is written by hand: a few eager operations for each tensor, whose gradients autograd finds."""

from copy import deepcopy
from math import sqrt

import torch
import torch.nn.functional as F
from peers_recovery.setting import Setting
from torch import Tensor, nn


class _Lsq(nn.Module):
    """Quantizes one tensor; the scale begins as Esser et al. (2020) say, at the first value that comes by."""

    def __init__(self, low: int, high: int, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.scale = nn.Parameter(torch.ones(shape))
        self.begun = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.begun:
            with torch.no_grad():
                axes = tuple(range(1, x.ndim)) if self.scale.ndim else tuple(range(x.ndim))
                mean = x.abs().mean(axes, keepdim=bool(self.scale.ndim))
                self.scale.copy_(2 * mean / sqrt(self.high))
            self.begun = True
        factor = 1 / sqrt(x.numel() * self.high)
        scale = (self.scale - self.scale * factor).detach() + self.scale * factor
        steps = torch.clamp(x / scale, self.low, self.high)
        steps = (steps.round() - steps).detach() + steps
        return steps * scale


class _Conv2d(nn.Module):
    def __init__(self, conv: nn.Conv2d, bits: int) -> None:
        super().__init__()
        self.conv = conv
        self.weight_lsq = _Lsq(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, (conv.out_channels, 1, 1, 1))
        self.input_lsq = _Lsq(0, (1 << bits) - 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv._conv_forward(self.input_lsq(x), self.weight_lsq(self.conv.weight), self.conv.bias)
        return y


class _Linear(nn.Module):
    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        self.linear = linear
        self.weight_lsq = _Lsq(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, (linear.out_features, 1))
        self.input_lsq = _Lsq(0, (1 << bits) - 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.input_lsq(x), self.weight_lsq(self.linear.weight), self.linear.bias)


def to_train(model: nn.Module, setting: Setting) -> nn.Module:
    """A copy with other layers."""
    kinds = {nn.Conv2d: _Conv2d, nn.Linear: _Linear}
    return setting.replace_layers(deepcopy(model), lambda module, bits: kinds[type(module)](module, bits))
