"""A skip around each convolution, as model surgery."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.copying import copied
from subbyte.errors import ConfigError
from subbyte.training.binary.surgery import checked, chosen, put, recorded


class Skip(nn.Module):
    """`y = inner(x) + shortcut(x)`, where the shortcut has no parameters.

    The shortcut is x itself; with a stride the mean over each stride x stride window; with k times as many channels out
    as in, k copies of x one after the other.

    Args:
        inner: from [n, inputs, h, w] to [n, outputs, ceil(h / stride), ceil(w / stride)]; or without n.
        stride: of the images.
        copies: outputs / inputs.
    """

    def __init__(self, inner: nn.Module, stride: int = 1, copies: int = 1) -> None:
        super().__init__()
        self.inner = inner
        self.stride = stride
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y + self.shortcut(x)

    def shortcut(self, x: Tensor) -> Tensor:
        """What is added, of the shape of the output."""
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride, ceil_mode=True)
        # A single image has no axis of samples.
        return x.repeat(*[1] * (x.ndim - 3), self.copies, 1, 1) if self.copies > 1 else x


def skip_per_convolution(model: nn.Module, data: Any, ops: Sequence[str] = ()) -> nn.Module:
    """A float copy of a model in which a skip leads past each convolution and its BatchNorm (Bi-Real Net, 2018).

    A sign leaves little of what a layer knew; the skip carries it on. The model computes another function than before
    and is to be trained; it stays an ordinary float model. Where a BatchNorm follows a convolution and nothing else,
    both move to `<convolution>.inner.0` and `.1`, and an Identity stands where it was.

    Args:
        model: float; not changed.
        data: one batch or more, as for `quantize`: a forward tells which BatchNorm follows which convolution.
        ops: regular expressions of the Conv2d to lead past; left out, all those that a skip fits: that keep the size
            of images or divide it by the stride, have a whole multiple of their input's channels, and are no 1x1.

    Raises:
        ConfigError: a pattern matches no Conv2d, one that no skip fits, or no convolution is left.
        ModelError: the model is quantized, or does not run any more, as where its code reads a convolution's weight.
    """
    data = list(islice(batches(data), 1))
    graph, changed = recorded(model, data), copied(model)
    found = chosen(changed, graph, ops)
    obstacles = {name: _obstacle(module) for name, module in found.items()}
    for name, why in obstacles.items():
        if why and ops:
            raise ConfigError(f"no skip leads past {name!r}: {why}")
    fitting = [name for name, why in obstacles.items() if not why]
    if not fitting:
        raise ConfigError(f"no skip leads past any Conv2d of this model: {obstacles or 'it has none'}")
    for name in fitting:
        convolution, norm = found[name], graph.ops[name].norm
        inner = nn.Sequential(convolution, *([changed.get_submodule(norm)] if norm else []))
        inner.training = convolution.training
        if norm:
            put(changed, norm, nn.Identity())
        skip = Skip(inner, convolution.stride[0], convolution.out_channels // convolution.in_channels)
        changed = put(changed, name, skip)
    return checked(changed, data)


def _obstacle(convolution: nn.Conv2d) -> str:
    """Why no skip leads past a convolution; empty where one does."""
    if convolution.out_channels % convolution.in_channels:
        return f"{convolution.out_channels} channels out are no multiple of {convolution.in_channels} in"
    if set(convolution.kernel_size) == {1}:
        return "it is 1x1"
    if convolution.stride[0] != convolution.stride[1]:
        return "its strides differ"
    reach = [(size - 1) * step for size, step in zip(convolution.kernel_size, convolution.dilation, strict=True)]
    padding = [0, 0] if convolution.padding == "valid" else convolution.padding
    if padding == "same" or [2 * int(each) for each in padding] == reach:
        return ""
    return "it changes the size of images by more than its stride; give it padding for that"
