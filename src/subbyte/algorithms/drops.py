"""Random masks, drawn once and used from another place each time."""

from typing import Any

import torch
from torch import Generator, Tensor

_POOL = 1 << 21  # far more than one tensor has, so that masks of neighbouring steps have little in common


class Drops:
    """Which values of a tensor are kept: each with one probability. Drawing fresh numbers costs more than the rest.

    Args:
        keep: the probability.
        generator: on the CPU.
    """

    def __init__(self, keep: float, generator: Generator) -> None:
        self.keep = keep
        self.generator = generator
        self._pool = torch.empty(0, dtype=torch.float32)

    def mix(self, kept: Tensor, other: Tensor) -> Tensor:
        """`kept` where a value is kept, else `other`; of one shape."""
        if self.keep >= 1:
            return kept
        return _Mix.apply(kept, other, self._mask(kept))  # type: ignore[no-any-return,no-untyped-call]

    def _mask(self, like: Tensor) -> Tensor:
        if len(self._pool) < 2 * like.numel():
            size = max(_POOL, 4 * like.numel())
            self._pool = torch.empty(size).bernoulli_(self.keep, generator=self.generator).to(like.device)
        # Ones and zeros in fp32: arithmetic on them is faster than choosing by truth values.
        start = int(torch.randint(len(self._pool) - like.numel() + 1, (), generator=self.generator))
        return self._pool[start : start + like.numel()].view(like.shape)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kept: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.lerp(other, kept, mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (mask,) = ctx.saved_tensors
        to_kept = gradients[0] * mask
        return to_kept, gradients[0] - to_kept if ctx.needs_input_grad[1] else None, None
