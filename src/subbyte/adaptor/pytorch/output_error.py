"""Outputs of a model beside those of its float original."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from subbyte.adaptor.output_error import OutputError
from subbyte.errors import ModelError

Outputs = Sequence[Sequence[Tensor]]  # of each batch its tensors

_PLACES = 1024  # of all outputs, of which deviations are kept
_LEAST = 1e-12  # length of a direction


def output_error(got: Outputs, expected: Outputs) -> OutputError:
    """How far outputs are from expected ones, over all batches and tensors; the first dimension counts samples.

    Of large outputs the deviation is kept at some places only, drawn by chance and always the same, and made larger by
    what they stand for. A sample that is a single number has no direction: its deviation is the plain difference over
    the root mean square of all. What is expected to be no finite number, as what a mask leaves out, is passed over.

    Raises:
        ModelError: the outputs are not of the same shapes.
    """
    shapes = [[[tuple(tensor.shape) for tensor in batch] for batch in outputs] for outputs in (got, expected)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            f"outputs have the shapes {shapes[0]} where ops are quantized and {shapes[1]} of the float model, so their "
            "errors cannot be measured; take a strategy that measures none, such as 'tpe' or 'basic'"
        )
    pairs = [
        _finite(y, x) for ours, floats in zip(got, expected, strict=True) for y, x in zip(ours, floats, strict=True)
    ]
    power = sum(_length(x) ** 2 for _, x in pairs)
    squared = sum(_length(y - x) ** 2 for y, x in pairs)
    parts = list(_deviations(pairs))
    deviation = np.concatenate(parts) / max(len(parts), 1) ** 0.5 if parts else np.zeros(0, np.float32)
    return OutputError(squared / power if power else 0.0, deviation.astype(np.float32))


def _finite(got: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Both with 0 where no finite number is expected."""
    passed_over = ~torch.isfinite(expected)
    if not passed_over.any():
        return got, expected
    return got.masked_fill(passed_over, 0.0), expected.masked_fill(passed_over, 0.0)


def _deviations(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[np.ndarray]:
    most = max(_PLACES // max(len(pairs), 1), 1)
    for got, expected in pairs:
        if not expected.numel():
            continue
        samples = len(expected) if expected.ndim else 1
        size = expected.numel() // samples
        places = _places(expected.numel(), most).to(expected.device)
        if size > 1:
            at, of = _directions(got, samples, places), _directions(expected, samples, places)
        else:
            root = max(_length(expected) / samples**0.5, torch.finfo(torch.float64).tiny)
            at, of = got.flatten()[places].double() / root, expected.flatten()[places].double() / root
        yield ((at - of) * (size / len(places)) ** 0.5).float().cpu().numpy()


def _directions(outputs: Tensor, samples: int, places: Tensor) -> Tensor:
    """[places], fp64: outputs, each sample's of length one."""
    rows = outputs.reshape(samples, -1)
    lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).clamp(min=_LEAST)
    directions: Tensor = rows.flatten()[places].double() / lengths[places // rows.shape[1]]
    return directions


def _length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def _places(count: int, most: int) -> Tensor:
    """Numbers of at most so many elements of `count`, drawn by chance."""
    if count <= most:
        return torch.arange(count)
    return torch.randint(count, (most,), generator=torch.Generator().manual_seed(0))
