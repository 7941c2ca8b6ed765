"""What decides, in a loader, which samples come next."""

from collections.abc import Iterator
from typing import Any

import torch


def generators_of(loader: Any) -> list[torch.Generator]:
    """The random generators that a loader and its samplers draw from, each once."""
    found = [getattr(part, "generator", None) for part in _parts(loader)]
    return list(dict.fromkeys(each for each in found if isinstance(each, torch.Generator)))


def begin_epoch(loader: Any, number: int) -> None:
    """Tell samplers that shuffle by the number of the epoch, as DistributedSampler does.

    Args:
        loader: of the training data.
        number: of the epoch, counted from 1; PyTorch's are told from 0 on.
    """
    for part in _parts(loader):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(number - 1)


def _parts(loader: Any) -> Iterator[Any]:
    """The loader, its sampler, its batch sampler, and what that draws from."""
    yield loader
    for name in ("sampler", "batch_sampler"):
        part = getattr(loader, name, None)
        if part is not None:
            yield from _parts(part)
