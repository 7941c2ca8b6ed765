"""Finding the convolutions of a float model, and putting other modules in their place."""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.discovery import discover
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.errors import ConfigError, nearest


def recorded(model: nn.Module, data: Any) -> Graph:
    """What one forward tells of a model, which stays as it was.

    Raises:
        CalibrationError: the model does not take the data.
    """
    return discover(copied(model), next(batches(data)))


def chosen(model: nn.Module, graph: Graph, ops: Sequence[str]) -> dict[str, nn.Conv2d]:
    """The Conv2d that patterns name, by name, in the order in which they run; without patterns all.

    Raises:
        ConfigError: a pattern matches none.
    """
    found = {op.name: model.get_submodule(op.name) for op in graph if op.kind == "module" and op.calls}
    convolutions = {name: module for name, module in found.items() if isinstance(module, nn.Conv2d)}
    for pattern in ops:
        if not any(re.fullmatch(pattern, name) for name in convolutions):
            raise ConfigError(f"ops: {pattern!r} matches no Conv2d of this model{nearest(pattern, convolutions)}")
    return {
        name: module
        for name, module in convolutions.items()
        if not ops or any(re.fullmatch(pattern, name) for pattern in ops)
    }


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one of that name."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
