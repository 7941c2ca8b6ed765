"""Splitting large batches of calibration data, so that few samples go through the model at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.batch import Batch, batches
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.errors import ConfigError, SubbyteError

DEFAULT_BATCH_SIZE = 128

_PROBED = 8  # samples that show whether a model computes each by itself
_CLOSE = 1e-3  # of the largest value: kernels may sum in another order for another batch size


def split_batches(
    model: nn.Module, data: Any, batch_size: int = DEFAULT_BATCH_SIZE, limit: int | None = None
) -> Iterable[Batch]:
    """Return the batches of `data`, each large one split into parts of about equal size.

    A batch is split along its first axis if all its tensors have the same length there, it holds no other objects, and
    the model computes each sample by itself: a forward of a few samples gives what these samples get among others.
    Otherwise the batch stays whole, for example a sequence whose first axis is time.

    Args:
        model: that the batches are for, float or quantized; left as it was.
        data: as the user gave it.
        batch_size: the largest number of samples in a part.
        limit: the largest number of samples in total; None is no limit.

    Raises:
        ConfigError: batch_size is not a positive integer.
        CalibrationError: the data is empty, or no calibration data at all.
    """
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ConfigError(f"batch_size must be a whole number of 1 or more, got {batch_size!r}")
    found = _SplitBatches(model, data, batch_size, limit)
    return list(found) if isinstance(data, Tensor | list) else found


@dataclass(frozen=True)
class _SplitBatches:
    """The split batches of data that may be too large for memory, such as those of a DataLoader."""

    model: nn.Module
    data: Any
    batch_size: int
    limit: int | None

    def __iter__(self) -> Iterator[Batch]:
        for batch in batches(self.data, self.limit):
            count = -(-batch.samples // self.batch_size)
            if count > 1 and batch.can_be_cut and _computes_samples_apart(self.model, batch):
                # Parts of about equal size: a last part of one sample would say little of a distribution.
                ends = [batch.samples * part // count for part in range(count + 1)]
                yield from (batch.part(slice(*ends[part : part + 2])) for part in range(count))
            else:
                yield batch

    def __len__(self) -> int:
        """The number of batches before any is split."""
        return len(self.data)


def _computes_samples_apart(model: nn.Module, batch: Batch) -> bool:
    """Return whether each sample has its own part of the model's first output, whichever other samples there are."""
    samples = min(batch.samples, _PROBED)
    rows = list(range(samples - 1, -1, -2))  # not all, and in another order: a recurrent network would notice
    try:
        whole = _first_output(model, batch.part(slice(samples)))
        part = _first_output(model, batch.part(rows))
    except SubbyteError:  # the forward of the whole batch will say why
        return False
    if whole is None or part is None or whole.numel() * len(rows) != part.numel() * samples or not whole.numel():
        return False
    if whole.numel() % samples:
        return False
    expected = whole.reshape(samples, -1)[rows]
    found = part.reshape(expected.shape)
    largest = float(expected.nan_to_num(posinf=0.0, neginf=0.0).abs().max())
    return torch.allclose(found, expected, rtol=0.0, atol=_CLOSE * largest, equal_nan=True)


def _first_output(model: nn.Module, batch: Batch) -> Tensor | None:
    with unchanged(model):
        outputs = tensors_in(batch.copied().run(model))
    return outputs[0].detach().double() if outputs else None
