"""Calibration data: what a user gives, as a stream of calls of the model."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, IterableDataset

from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.errors import CalibrationError, SubbyteError

_SIMPLE = (Tensor, int, float, str, type(None))  # whose samples are known


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
        if isinstance(batch, Batch):
            return batch
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
        lengths = self._lengths()
        return lengths[0] if lengths else 1

    @property
    def given(self) -> Any:
        """As the user gave it: a tensor, a tuple or a dict; both kinds of arguments as a pair of these."""
        if self.kwargs:
            return (self.args, dict(self.kwargs)) if self.args else dict(self.kwargs)
        return self.args[0] if len(self.args) == 1 else self.args

    def first(self, count: int) -> "Batch":
        """The first samples; the whole batch where its tensors differ in their first axis, or an object holds some."""
        leaves = tree_leaves((self.args, self.kwargs))
        can_be_cut = len(set(self._lengths())) == 1 and all(isinstance(leaf, _SIMPLE) for leaf in leaves)
        if count >= self.samples or not can_be_cut:
            return self

        def cut(leaf: Any) -> Any:
            return leaf[:count] if isinstance(leaf, Tensor) and leaf.ndim else leaf

        return Batch(tree_map(cut, self.args), tree_map(cut, self.kwargs), self.index)

    def _lengths(self) -> list[int]:
        tensors = tensors_in((self.args, self.kwargs))
        return [x.shape[0] for x in tensors if x.ndim]

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
        except Exception as error:  # whatever the model's own code raises; no interrupt, which is none
            shapes = [tuple(x.shape) for x in tensors_in((self.args, self.kwargs))]
            hint = "give batches as the model's forward takes them"
            if len(self.args) > 1 and not self._fits(model.forward):
                hint = (
                    f"a batch that is a tuple or list is positional arguments, here {len(self.args)}: of "
                    "(input, label) pairs give the inputs alone, or use subbyte.quantization.fit, which drops the label"
                )
            raise CalibrationError(
                f"the model does not run on calibration batch {self.index} (tensors of shapes {shapes}): "
                f"{type(error).__name__}: {error}; {hint}"
            ) from error

    def _fits(self, forward: Callable[..., Any]) -> bool:
        """Whether `forward` takes as many arguments, and of these names."""
        try:
            inspect.signature(forward).bind(*self.args, **self.kwargs)
        except TypeError:
            return False
        return True


def batches(data: Any, limit: int | None = None) -> Iterator[Batch]:
    """The batches of `data`: one tensor is one batch; anything else is iterated.

    Args:
        data: as the user gave it.
        limit: stop after this many samples; the last batch is cut to it where all its tensors have one first axis.

    Raises:
        CalibrationError: it is empty, or cannot be iterated.
    """
    if isinstance(data, Tensor):
        data = [data]
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise CalibrationError(
            f"calibration data is a tensor or an iterable of batches, not a {type(data).__name__}, which gives single "
            "samples; wrap it in a torch.utils.data.DataLoader"
        )
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
        yield batch if limit is None else batch.first(limit - samples)
        samples += batch.samples
        if limit is not None and samples >= limit:
            return
    if samples == 0:
        raise CalibrationError("the calibration data is empty: give at least one batch with at least one sample")
