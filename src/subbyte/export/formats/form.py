"""What a format has to say of itself; adding one is one small file."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from subbyte.errors import CheckpointError
from subbyte.export.formats.contents import Contents
from subbyte.export.formats.hugging_face import CONFIG, Folder, joined, write_folder
from subbyte.export.formats.integer_weight import IntegerWeight
from subbyte.spec import TensorSpec

# In the metadata of the safetensors file: how each weight was specified, which no format has a place for.
SPECS = "subbyte_specs"


class Writer(ABC):
    """A format that models are written in."""

    @abstractmethod
    def write(self, contents: Contents, path: str | Path) -> None:
        """Write a model, whole or not at all.

        Raises:
            CheckpointError: the format cannot hold it, or it cannot be written.
        """


class FolderWriter(Writer):
    """A form of Hugging Face checkpoint.

    Class attributes:
        op_types: the ops whose quantized weights it holds.
    """

    op_types: ClassVar[tuple[str, ...]]

    @abstractmethod
    def quantization_config(self, contents: Contents) -> dict[str, Any]:
        """What config.json says of the quantization.

        Raises:
            CheckpointError: one set of settings cannot describe this model.
        """

    @abstractmethod
    def encode(self, weight: IntegerWeight) -> dict[str, Tensor]:
        """The tensors of one op, by the name after the op's.

        Raises:
            CheckpointError: the format cannot hold this weight; says what would fit.
        """

    def files(self, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """JSON files beside config.json, of the same settings."""
        return {}

    def write(self, contents: Contents, path: str | Path) -> None:
        tensors = dict(contents.tensors)
        for name, weight in contents.weights.items():
            for part, tensor in self._encoded(contents, name, weight).items():
                # Tied weights share memory, which safetensors files cannot.
                tensors[joined(name, part)] = tensor.clone(memory_format=torch.contiguous_format)
        settings = self.quantization_config(contents)
        config = contents.config | _untied(contents) | {"quantization_config": settings}
        metadata = {SPECS: specs_text(contents.specs)}
        write_folder(path, Folder(tensors, {CONFIG: config, **self.files(settings)}, metadata))

    def _encoded(self, contents: Contents, name: str, weight: IntegerWeight) -> dict[str, Tensor]:
        check_type(contents, name, self.op_types)
        try:
            return self.encode(weight)
        except CheckpointError as error:
            raise CheckpointError(f"op {name!r}: {error}") from None


@dataclass(frozen=True)
class StoredOp:
    """The tensors of a quantized op, as a checkpoint has them.

    Args:
        name: of the op.
        kind: its type, as in `Linear`.
        shape: [out, in] of its weight in the model that it is read for.
        tensors: by the name after the op's.
    """

    name: str
    kind: str
    shape: tuple[int, int]
    tensors: Mapping[str, Tensor]

    def tensor(self, part: str) -> Tensor:
        """One of its tensors.

        Raises:
            CheckpointError: it is missing.
        """
        if part not in self.tensors:
            raise CheckpointError(f"its {part} is missing")
        return self.tensors[part]


class Reader(ABC):
    """A form of Hugging Face checkpoint that models are read from.

    Class attributes:
        op_types: the ops whose quantized weights it holds.
        marker: the tensor that every quantized op has, and no other.
        parts: all tensors that a quantized op may have in the place of its weight.
    """

    op_types: ClassVar[tuple[str, ...]]
    marker: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    @abstractmethod
    def settings(self, folder: Folder) -> Any:
        """What the folder says of its quantization; None where it is of another form.

        Raises:
            CheckpointError: it is of this form, and of a kind that is not read.
        """

    @abstractmethod
    def decode(self, op: StoredOp, settings: Any) -> IntegerWeight:
        """The weight of an op; its shapes are checked by who calls.

        Raises:
            CheckpointError: tensors are missing, or not such as the settings say.
        """


def check_type(contents: Contents, name: str, allowed: tuple[str, ...]) -> None:
    """Refuse an op of a type that a format does not hold.

    Raises:
        CheckpointError: naming the op.
    """
    kind = contents.op_types.get(name, "recurrent")
    if kind not in allowed:
        raise CheckpointError(
            f"op {name!r} is {kind}, and this format holds quantized weights of {' and '.join(allowed)} alone; leave "
            f"it float, as in 'op_name_dict': {{{name!r}: 'fp32'}}"
        )


def check_divides(size: int, of: int, what: str) -> None:
    """Refuse a size that is no whole number of blocks.

    Raises:
        CheckpointError: naming both.
    """
    if of % size:
        raise CheckpointError(f"this format has {what} in blocks of {size}, and there are {of}; leave this op float")


def check_consecutive(index: Tensor, inputs: int, group_size: int) -> None:
    """Refuse groups whose inputs do not follow one another, as act-order leaves them.

    Args:
        index: [inputs], the group of each input.

    Raises:
        CheckpointError: with what to do.
    """
    found = index.reshape(-1).tolist()
    if found == [position // group_size for position in range(inputs)]:
        return
    if found == sorted(found):
        raise CheckpointError(f"its group index is not that of {inputs} inputs in groups of {group_size}")
    raise CheckpointError(
        "its groups are permuted (act-order: desc_act, or actorder 'group'), and Subbyte's are consecutive inputs; "
        "have the checkpoint quantized with desc_act=False, with static groups, or with group_size=-1"
    )


def specs_text(specs: Mapping[str, TensorSpec]) -> str:
    """Specs and their data types, for the metadata of a safetensors file."""
    dtypes = {spec.dtype.name: spec.dtype.to_dict() for spec in specs.values()}
    noted = {name: replace(spec, axis=None).to_dict() for name, spec in specs.items()}  # an op fills its axis in
    return json.dumps({"dtypes": dtypes, "specs": noted})


def _untied(contents: Contents) -> dict[str, Any]:
    """Quantized weights are stored apart, whatever they were tied to; and some methods untie float ones."""
    tied = contents.config.get("tie_word_embeddings")
    return {"tie_word_embeddings": False} if tied and not contents.ties_ends else {}
