"""Calibration data: what a user gives, as a stream of calls of the model."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.errors import CalibrationError, SubbyteError


@dataclass(frozen=True)
class Batch:
    """The arguments of one forward."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = None  # type: ignore[assignment]  # set below
    index: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", dict(self.kwargs or {}))

    @classmethod
    def of(cls, batch: Any, index: int = 0) -> "Batch":
        """A tensor, a tuple (or list) of positional or a mapping of keyword arguments.

        Raises:
            CalibrationError: it is none of these.
        """
        if isinstance(batch, Tensor):
            return cls((batch,), {}, index)
        if isinstance(batch, Mapping):
            return cls((), dict(batch), index)
        if isinstance(batch, tuple | list):
            return cls(tuple(batch), {}, index)
        raise CalibrationError(
            f"calibration batch {index} is a {type(batch).__name__}; a batch is a tensor, a tuple of positional "
            "arguments or a dict of keyword arguments"
        )

    @property
    def samples(self) -> int:
        """The size of the first axis of the first tensor."""
        tensors = [x for x in tensors_in((self.args, self.kwargs)) if x.ndim]
        return tensors[0].shape[0] if tensors else 1

    def copied(self) -> "Batch":
        """The same batch with tensors of its own: a forward may write into its inputs, or into a cache it is given."""

        def own(leaf: Any) -> Any:
            return leaf.detach().clone() if isinstance(leaf, Tensor) else copy.deepcopy(leaf)

        return Batch(tree_map(own, self.args), tree_map(own, self.kwargs), self.index)

    def run(self, model: nn.Module) -> Any:
        """The model's output.

        Raises:
            CalibrationError: the model does not take this batch.
        """
        try:
            return model(*self.args, **self.kwargs)
        except SubbyteError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            shapes = [tuple(x.shape) for x in tensors_in((self.args, self.kwargs))]
            raise CalibrationError(
                f"the model does not run on calibration batch {self.index} (tensors of shapes {shapes}): {error}; "
                "give batches as the model's forward takes them"
            ) from error


def batches(data: Any, limit: int | None = None) -> Iterator[Batch]:
    """The batches of `data`: one tensor is one batch; anything else is iterated.

    Args:
        data: as the user gave it.
        limit: stop after this many samples (whole batches).

    Raises:
        CalibrationError: it is empty, or cannot be iterated.
    """
    if isinstance(data, Tensor):
        data = [data]
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise CalibrationError(
            f"calibration data is a tensor or an iterable of batches, not a {type(data).__name__}; "
            "put a single batch in a list"
        )
    samples, index = 0, -1
    for index, item in enumerate(data):
        batch = Batch.of(item, index)
        if batch.samples == 0:
            continue
        yield batch
        samples += batch.samples
        if limit is not None and samples >= limit:
            return
    if samples == 0:
        raise CalibrationError("the calibration data is empty: give at least one batch with at least one sample")
