"""The cases in which layers are measured: their shapes, and their inputs and weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["Linear", "Conv2d"]
SEED = 0

# Shapes by name: (rows, inputs, outputs) of Linear; (batch, channels, side) of Conv2d.
LINEAR = {
    "M=1": (1, 4096, 4096),
    "M=16": (16, 4096, 4096),
    "M=128": (128, 4096, 4096),
    "M=1 wide": (1, 4096, 11008),
    "M=512": (512, 1024, 1024),
}
CONVOLUTION = {
    "64 channels": (1, 64, 56),
    "128 channels": (1, 128, 28),
    "256 channels": (1, 256, 14),
    "16 channels": (32, 16, 32),
}
QUICK_LINEAR = {"M=1": (1, 512, 512), "M=128": (128, 512, 512)}
QUICK_CONVOLUTION = {"16 channels": (2, 16, 8)}


@dataclass(frozen=True)
class Case:
    """A layer's shape, and the circumstances in which it is measured.

    Args:
        kind: Linear, or Conv2d of 3x3 with padding 1.
        name: Name of the shape: M=1, or 64 channels.
        sizes: (rows, inputs, outputs) of Linear; (batch, channels, side) of Conv2d.
        weights: HOT, the same weight at every call, or COLD, a weight that is in no cache.
        isa: Instruction set that our kernels are restricted to. Default: the widest.
    """

    kind: Kind
    name: str
    sizes: tuple[int, int, int]
    weights: str = "HOT"
    isa: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}, {self.weights}{f', {self.isa} forced' if self.isa else ''}"

    @property
    def key(self) -> str:
        """Name and circumstances, as goals ask for them."""
        return " ".join(filter(None, [self.kind, self.name, self.weights, self.isa]))

    @property
    def shape(self) -> str:
        first, second, third = self.sizes
        return f"{first}, {second}, {third}" if self.kind == "Linear" else f"{first} of {second} x {third} x {third}"

    @property
    def operations(self) -> float:
        """Operations of one layer; a multiplication and an addition count as two."""
        first, second, third = self.sizes
        return 2.0 * first * second * third * (1 if self.kind == "Linear" else 9 * second * third)

    @property
    def is_bound_by_memory(self) -> bool:
        """Whether each weight is used once."""
        return self.kind == "Linear" and self.sizes[0] == 1

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the input and the weight, the same in every process."""
        torch.manual_seed(SEED)
        if self.kind == "Linear":
            rows, inputs, outputs = self.sizes
            return torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
        batch, channels, side = self.sizes
        x = torch.randn(batch, channels, side, side).contiguous(memory_format=torch.channels_last)
        return x, torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5


def linear_cases(*, quick: bool) -> Iterator[Case]:
    """All shapes; a single row also COLD."""
    for name, sizes in (QUICK_LINEAR if quick else LINEAR).items():
        for weights in ("HOT", "COLD") if sizes[0] == 1 else ("HOT",):
            yield Case("Linear", name, sizes, weights)


def convolution_cases(*, quick: bool) -> Iterator[Case]:
    """All shapes."""
    for name, sizes in (QUICK_CONVOLUTION if quick else CONVOLUTION).items():
        yield Case("Conv2d", name, sizes)


def avx2_cases(*, quick: bool) -> Iterator[Case]:
    """Linear layers of up to 128 rows, our kernels restricted to AVX2."""
    for name, sizes in (QUICK_LINEAR if quick else LINEAR).items():
        if name in ("M=1", "M=16", "M=128"):
            yield Case("Linear", name, sizes, isa="avx2")
