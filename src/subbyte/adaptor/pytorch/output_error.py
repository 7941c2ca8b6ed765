"""Outputs of a model beside those of its float original."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.adaptor.output_error import OutputError

Outputs = Sequence[Sequence[Tensor]]  # of each batch its tensors

_PLACES = 1024  # of the outputs of a batch, of which deviations are kept


def output_error(got: Outputs, expected: Outputs) -> OutputError:
    """How far outputs are from expected ones, over all batches and tensors; the first dimension counts samples.

    Of large outputs the deviation is kept at some places only, drawn by chance and always the same, and made larger by
    what they stand for. A sample that is a single number has no direction: its deviation is the plain difference over
    the root mean square of all.
    """
    pairs = [(y, x) for ours, floats in zip(got, expected, strict=True) for y, x in zip(ours, floats, strict=True)]
    power = sum(float(x.double().square().sum()) for _, x in pairs)
    squared = sum(float((y.double() - x.double()).square().sum()) for y, x in pairs)
    parts = list(_deviations(pairs))
    deviation = np.concatenate(parts) / max(len(parts), 1) ** 0.5 if parts else np.zeros(0, np.float32)
    return OutputError(squared / power if power else 0.0, deviation.astype(np.float32))


def _deviations(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[np.ndarray]:
    for got, expected in pairs:
        if not expected.numel():
            continue
        got, expected = got.reshape(len(got) if got.ndim else 1, -1), expected.reshape(*got.shape[:1] or (1,), -1)
        samples, size = expected.shape
        if size > 1:
            got, expected = F.normalize(got.double(), dim=1), F.normalize(expected.double(), dim=1)
        else:
            root = expected.double().square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
            got, expected = got.double() / root, expected.double() / root
        difference = ((got - expected) / samples**0.5).flatten()
        yield _some_of(difference).float().cpu().numpy()


def _some_of(values: Tensor) -> Tensor:
    if len(values) <= _PLACES:
        return values
    places = torch.randint(len(values), (_PLACES,), generator=torch.Generator().manual_seed(0))
    drawn: Tensor = values[places.to(values.device)] * (len(values) / _PLACES) ** 0.5
    return drawn
