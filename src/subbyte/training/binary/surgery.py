"""Finding the convolutions of a float model, and putting other modules in their place."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.discovery import discover
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.state import is_quantized
from subbyte.errors import ConfigError, ModelError, nearest


def recorded(model: nn.Module, data: Any) -> Graph:
    """What one forward tells of a model, which stays as it was.

    Raises:
        ModelError: the model is quantized.
        CalibrationError: the model does not take the data.
    """
    if is_quantized(model):
        raise ModelError("this model is prepared or quantized already; change the float model, and prepare that")
    return discover(copied(model), next(batches(data)))


def checked(changed: nn.Module, data: Any) -> nn.Module:
    """A model after surgery, once it has run; it stays as it was.

    Raises:
        ModelError: it does not run any more, as where its code reads the weight of a convolution itself.
    """
    try:
        with torch.no_grad():
            batch = next(batches(data)).copied()
            copied(changed).eval()(*batch.args, **batch.kwargs)
    except Exception as error:  # the model's own code may raise anything
        raise ModelError(
            f"with these changes the model does not run ({type(error).__name__}: {error}); name the convolutions whose "
            "place something else can take: ops=[...]"
        ) from error
    return changed


def chosen(model: nn.Module, graph: Graph, ops: Sequence[str]) -> dict[str, nn.Conv2d]:
    """The Conv2d that patterns name, by name, in the order in which they run; without patterns all.

    Raises:
        ConfigError: a pattern matches none, or is none.
    """
    if isinstance(ops, str):
        raise ConfigError(f"ops: a list of names or regular expressions is expected, as in [{ops!r}], not {ops!r}")
    found = {op.name: model.get_submodule(op.name) for op in graph if op.kind == "module" and op.calls}
    convolutions = {name: module for name, module in found.items() if isinstance(module, nn.Conv2d)}
    for pattern in ops:
        if not any(_matches(pattern, name) for name in convolutions):
            raise ConfigError(f"ops: {pattern!r} matches no Conv2d of this model{nearest(pattern, convolutions)}")
    return {
        name: module
        for name, module in convolutions.items()
        if not ops or any(_matches(pattern, name) for pattern in ops)
    }


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise ConfigError(f"ops: {pattern!r} is neither a name nor a regular expression: {error}") from None


def put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module in the place of the one of that name, in its mode, and wherever else that stands; the model then."""
    before = model.get_submodule(name)
    module.training = before.training
    if before is model:
        return module
    places = [(parent, key) for parent in model.modules() for key, child in parent._modules.items() if child is before]
    for parent, key in places:
        setattr(parent, key, module)
    return model
