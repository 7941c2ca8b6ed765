"""Gradients that have no gradients themselves: who asks for them is told, rather than given zeros."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError

Backward = Callable[..., Any]


def differentiable_once(backward: Backward) -> Backward:
    """The same way back, of which no gradient can be taken again.

    What PyTorch has for this raises only where all of a graph runs: `torch.autograd.grad` of some inputs passes it by.

    Args:
        backward: of a torch.autograd.Function or an operator: (ctx, *gradients) to the gradients of its inputs.
    """

    @wraps(backward)
    def once(ctx: Any, *gradients: Tensor) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # PyTorch refuses it of compiled code
            return backward(ctx, *gradients)
        with torch.no_grad():
            found: Sequence[Tensor | None] = backward(ctx, *gradients)
        sources = [each for each in (*gradients, *ctx.saved_tensors) if each.requires_grad]
        return tuple(None if each is None else _refused(each, sources) for each in found)

    return once


def _refused(gradient: Tensor, sources: Sequence[Tensor]) -> Tensor:
    result: Tensor = _Refused.apply(gradient, *sources)  # type: ignore[no-untyped-call]
    return result


class _Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        ctx.count = len(sources)
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        raise KernelError(
            "gradients of gradients (create_graph=True, as a penalty on gradients takes them) are not known of values "
            "that are quantized by a learned scale; take the penalty on the float model, or train these quantizers by "
            "'straight_through'"
        )
