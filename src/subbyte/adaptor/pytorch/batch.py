"""Calibration data: what a user gives, as a stream of calls of the model."""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, IterableDataset

from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.errors import CalibrationError, SubbyteError, listing, nearest

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

    @property
    def can_be_cut(self) -> bool:
        """Whether all its tensors have one first axis, and no object that is not understood holds others."""
        leaves = tree_leaves((self.args, self.kwargs))
        return len(set(self._lengths())) == 1 and all(isinstance(leaf, _SIMPLE) for leaf in leaves)

    def first(self, count: int) -> "Batch":
        """Return the first samples, or the whole batch if it cannot be cut."""
        return self.part(slice(count)) if count < self.samples and self.can_be_cut else self

    def part(self, rows: slice | list[int]) -> "Batch":
        """Return some samples of a batch that can be cut: views where `rows` is a slice."""

        def cut(leaf: Any) -> Any:
            return leaf[rows] if isinstance(leaf, Tensor) and leaf.ndim else leaf

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
            raise CalibrationError(
                f"the model does not run on calibration batch {self.index} (tensors of shapes {shapes}): "
                f"{type(error).__name__}: {error}; {self._hint(model.forward)}"
            ) from error

    def _hint(self, forward: Callable[..., Any]) -> str:
        """Say what may be wrong with a batch that the model's forward does not take."""
        names = _names_of_arguments(forward)
        unknown = [] if names is None else [name for name in self.kwargs if name not in names]
        if names is not None and unknown:
            return (
                f"a batch that is a dict holds keyword arguments of the model's forward, which takes no "
                f"{listing(map(repr, unknown))}{nearest(unknown[0], names)} (its arguments: {', '.join(names)})"
            )
        if len(self.args) > 1 and not self._fits(forward):
            return (
                f"a batch that is a tuple or list is positional arguments, here {len(self.args)}: of "
                "(input, label) pairs give the inputs alone, or use subbyte.quantization.fit, which drops the label"
            )
        return "give batches as the model's forward takes them"

    def _fits(self, forward: Callable[..., Any]) -> bool:
        """Whether `forward` takes as many arguments, and of these names."""
        try:
            inspect.signature(forward).bind(*self.args, **self.kwargs)
        except TypeError:
            return False
        return True


def _names_of_arguments(forward: Callable[..., Any]) -> list[str] | None:
    """Return the names that `forward` takes as keywords; None if it takes any."""
    parameters = inspect.signature(forward).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in by_name]


def check_data(data: Any) -> None:
    """Raise CalibrationError if `data` is neither a tensor nor an iterable of batches.

    A tuple of tensors is refused, although it can be iterated: as a batch it would be the arguments of one forward.
    Consecutive parts of one tensor, such as `images.split(128)` gives, are batches.
    """
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
    if isinstance(data, tuple) and all(isinstance(each, Tensor) for each in data) and not _are_parts_of_one(data):
        shapes = ", ".join(str(tuple(each.shape)) for each in data)
        raise CalibrationError(
            f"calibration data is a tuple of {len(data)} tensors of shapes {shapes}, which may be the arguments of one "
            "forward or several batches; give data=[(x, y)] for one batch with several arguments, data=[x] for inputs "
            "without their labels, or a list for several batches"
        )


def _are_parts_of_one(tensors: tuple[Tensor, ...]) -> bool:
    """Return whether the tensors follow one another along the first axis of one tensor.

    Inputs and labels may share memory, too: `ids[:, :-1], ids[:, 1:]`.
    """
    return all(_follows(part, following) for part, following in itertools.pairwise(tensors))


def _follows(part: Tensor, following: Tensor) -> bool:
    if part.dim() == 0 or part.stride() != following.stride() or part.shape[1:] != following.shape[1:]:
        return False
    end = part.data_ptr() + part.shape[0] * part.stride(0) * part.element_size()
    return part.untyped_storage().data_ptr() == following.untyped_storage().data_ptr() and end == following.data_ptr()


def batches(data: Any, limit: int | None = None) -> Iterator[Batch]:
    """The batches of `data`: one tensor is one batch; anything else is iterated.

    Args:
        data: as the user gave it.
        limit: stop after this many samples; the last batch is cut to it where all its tensors have one first axis.

    Raises:
        CalibrationError: it is empty, cannot be iterated, or holds tensors of several kinds, such as inputs and labels.
    """
    check_data(data)
    samples, index, kind = 0, -1, None
    for index, item in enumerate([data] if isinstance(data, Tensor) else data):
        if isinstance(item, Tensor):
            kind = _same_kind(item, index, kind)
        batch = Batch.of(item, index)
        if batch.samples == 0:
            continue
        yield batch if limit is None else batch.first(limit - samples)
        samples += batch.samples
        if limit is not None and samples >= limit:
            return
    if samples == 0:
        raise CalibrationError("the calibration data is empty: give at least one batch with at least one sample")


def _same_kind(batch: Tensor, index: int, before: str | None) -> str:
    """Return the kind of a batch that is a plain tensor.

    Raises:
        CalibrationError: it is not the kind of the ones before, as where a list holds inputs and their labels.
    """
    number = "float" if batch.is_floating_point() or batch.is_complex() else "integer"
    kind = f"{number} tensors with {batch.ndim} axes"
    if before not in (None, kind):
        raise CalibrationError(
            f"calibration batch {index} is a {batch.dtype} tensor of shape {tuple(batch.shape)}, but batches before it "
            f"are {before}; give data=[(x, y)] for one batch with several arguments, data=[x] for inputs without "
            "their labels, or data=[(x,), (y,)] for batches that differ on purpose"
        )
    return kind
