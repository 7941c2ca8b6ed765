"""A layer under test: something that can be instantiated with weights of its own, and called."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch
from timing import Times
from torch import Tensor

GROUP = 128

Call = Callable[[], object]


@dataclass(frozen=True)
class Layer:
    """One implementation of a layer, its input given.

    Args:
        instance: a further copy of the weight, as a function that runs the layer with it.
        nbytes: what a call reads of its weight.
        in_a_call: layers that one call runs, one after another.
        alone: whether it does the work of the whole layer. Default: True.
    """

    instance: Callable[[], Call]
    nbytes: int
    in_a_call: int = 1
    alone: bool = True

    def hot(self) -> Call:
        """The same weight at every call."""
        return self.instance()

    def cold(self, held: int) -> Call:
        """One weight after another, `held` bytes of them and two at least."""
        turns = cycle([self.instance() for _ in range(max(2, -(-held // self.nbytes)))])
        return lambda: next(turns)()

    def per_layer(self, times: Times) -> Times:
        """Of one layer, given those of calls."""
        return Times(tuple(seconds / self.in_a_call for seconds in times.seconds))


@dataclass(frozen=True)
class Grouped:
    """A weight [outputs, inputs] as unsigned codes in groups of 128 inputs; the middle code is zero.

    Args:
        codes: uint8 [outputs, groups, 128].
        scale: fp32 [outputs, groups].
        bits: of a code.
    """

    codes: Tensor
    scale: Tensor
    bits: int

    @classmethod
    def of(cls, weight: Tensor, bits: int) -> "Grouped":
        middle = 1 << (bits - 1)
        groups = weight.view(weight.shape[0], -1, GROUP)
        scale = groups.abs().amax(-1) / middle
        codes = (groups / scale[..., None]).round().add(middle).clamp(0, 2 * middle - 1)
        return cls(codes.to(torch.uint8), scale, bits)

    def packed(self) -> Tensor:
        """uint8 [outputs, groups, bytes], the first code in the low bits."""
        in_a_byte = 8 // self.bits
        parts = self.codes.unflatten(-1, (-1, in_a_byte)).unbind(-1)
        return sum((part << (self.bits * i) for i, part in enumerate(parts)), torch.zeros_like(parts[0]))


@dataclass(frozen=True)
class Eight:
    """A tensor as int8 codes; a weight has a scale for each output, an input one in all.

    Args:
        codes: int8.
        scale: fp32, [outputs] or [1].
    """

    codes: Tensor
    scale: Tensor

    @classmethod
    def of_weight(cls, weight: Tensor) -> "Eight":
        scale = weight.flatten(1).abs().amax(1) / 127
        return cls((weight / scale.view(-1, *[1] * (weight.ndim - 1))).round().to(torch.int8), scale)

    @classmethod
    def of_input(cls, x: Tensor) -> "Eight":
        scale = x.abs().amax().view(1) / 127
        return cls((x / scale).round().to(torch.int8), scale)

    def unsigned(self) -> Tensor:
        """uint8 codes with the zero point 128."""
        return self.codes.view(torch.uint8) ^ 128


def of_function(function: Callable[..., object], weight: Tensor, *arguments: object) -> Layer:
    """A layer that is a function of its weight and of other arguments, which all copies share."""
    return Layer(lambda: partial(function, weight.clone(), *arguments), weight.nbytes)
