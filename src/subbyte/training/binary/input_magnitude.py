"""K of XNOR-Net: how large the input is at each place of the output."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.copying import copied
from subbyte.errors import ConfigError
from subbyte.training.binary.surgery import checked, chosen, put, recorded


class InputMagnitude(nn.Module):
    """`y = conv(x / A) * K + bias` (XNOR-Net, Rastegari et al., 2016, section 3.2).

    A is the mean of |x| over channels and K the mean of A over the convolution's window, zeros of padding counted, as
    in the paper. The mean of |x / A| is 1 at every place, so that a calibrated scale of a binary input is 1, and the
    result is the paper's `(sign(x) * sign(W)) K alpha`. It stays a module of its own around the convolution, computed
    in float and alike in train(), in eval() and after `convert`.

    Args:
        conv: with one group and zero padding; its bias is taken over.

    Raises:
        ConfigError: of a convolution that is none of this kind.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        if not _is_taken(conv):
            raise ConfigError(f"InputMagnitude: one group and zero padding are needed: {conv}")
        self.conv = conv
        self.bias = conv.bias
        conv.register_parameter("bias", None)
        window = conv.weight.new_full((1, 1, *conv.kernel_size), 1.0 / (conv.kernel_size[0] * conv.kernel_size[1]))
        self.register_buffer("window", window, persistent=False)

    window: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Of x [n, inputs, h, w] or [inputs, h, w], as the convolution's own."""
        magnitude = x.abs().mean(-3, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        around = F.conv2d(magnitude, self.window, None, self.conv.stride, self.conv.padding, self.conv.dilation)
        bias = x.new_zeros(()) if self.bias is None else self.bias.view(-1, 1, 1).to(x.dtype)
        # One operation, so that no rule for products or sums quantizes what is between.
        return torch.addcmul(bias, self.conv(x / magnitude), around)


def scale_by_input(model: nn.Module, data: Any, ops: Sequence[str] = ()) -> nn.Module:
    """A float copy of a model whose convolutions are each inside an InputMagnitude; it is to be trained.

    Args:
        model: float; not changed.
        data: one batch or more, as for `quantize`.
        ops: regular expressions of the Conv2d; left out, all that an InputMagnitude takes.

    Raises:
        ConfigError: a pattern matches no Conv2d, or one that an InputMagnitude does not take, or there is none that it
            does.
        ModelError: the model is quantized, or does not run any more, as where its code reads a convolution's weight.
    """
    data = list(islice(batches(data), 1))
    graph, changed = recorded(model, data), copied(model)
    found = chosen(changed, graph, ops)
    taken = {name: convolution for name, convolution in found.items() if ops or _is_taken(convolution)}
    if not taken:
        raise ConfigError(
            f"InputMagnitude takes no Conv2d of this model: one group and zero padding are needed: {found or 'none'}"
        )
    for name, convolution in taken.items():
        changed = put(changed, name, InputMagnitude(convolution))
    return checked(changed, data)


def _is_taken(conv: nn.Conv2d) -> bool:
    return conv.groups == 1 and conv.padding_mode == "zeros"
