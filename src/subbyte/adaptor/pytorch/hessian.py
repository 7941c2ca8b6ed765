"""The trace of the loss's second derivative by each weight."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.errors import TuningError

LossFunction = Callable[[nn.Module, Any], Tensor]
_DRAWS = 8  # vectors for each batch


def hessian_traces(
    model: nn.Module, weights: Mapping[str, Sequence[nn.Parameter]], batches: Sequence[Batch], loss_fn: LossFunction,
    seed: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Hutchinson's estimate (1990): the mean of v' H v over random vectors v of +-1.

    Args:
        model: float, in eval(); gradients of its parameters are left as they are.
        weights: of each op.
        batches: on which the loss is.
        loss_fn: from the model and a batch, as it was given, to a scalar.
        seed: of the vectors.

    Returns:
        for each op the trace over its number of weights: the mean second derivative.

    Raises:
        TuningError: the loss is no scalar with a gradient by the weights.
    """
    names = [name for name, found in weights.items() if found]
    flat = [weight for name in names for weight in weights[name]]
    generator = torch.Generator().manual_seed(seed)
    totals = [0.0] * len(flat)
    wanted = [weight.requires_grad for weight in flat]
    try:
        for weight in flat:
            weight.requires_grad_(True)
        for batch in batches:
            for index, product in enumerate(_products(model, flat, batch, loss_fn, generator)):
                totals[index] += product / (len(batches) * _DRAWS)
    finally:
        for weight, needed in zip(flat, wanted, strict=True):
            weight.requires_grad_(needed)
    found = iter(totals)
    return {name: sum(next(found) for _ in weights[name]) / sum(w.numel() for w in weights[name]) for name in names}


def _products(
    model: nn.Module, weights: Sequence[nn.Parameter], batch: Batch, loss_fn: LossFunction, generator: torch.Generator
) -> list[float]:
    """For each weight the sum of v' H v over the draws."""
    totals = [0.0] * len(weights)
    with torch.enable_grad():
        loss = loss_fn(model, batch.copied().given)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TuningError("loss_fn must return a scalar tensor that has a gradient by the model's weights")
        gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
        for _ in range(_DRAWS):
            vectors = [_signs(weight, generator) for weight in weights]
            along = sum((g * v).sum() for g, v in zip(gradients, vectors, strict=True) if g is not None)
            if not isinstance(along, Tensor) or not along.requires_grad:
                continue  # a loss that is linear in the weights has no second derivative
            seconds = torch.autograd.grad(along, weights, retain_graph=True, allow_unused=True)
            for index, (second, vector) in enumerate(zip(seconds, vectors, strict=True)):
                totals[index] += 0.0 if second is None else float((second * vector).sum())
    return totals


def _signs(weight: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(0, 2, weight.shape, generator=generator)
    return (2 * drawn - 1).to(weight.device, weight.dtype)
