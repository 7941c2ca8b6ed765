"""Copying a model, and saying what stands in the way where that cannot be done."""

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.closures import check_closures
from subbyte.adaptor.pytorch.compiled import check_whole
from subbyte.errors import ModelError

Model = TypeVar("Model", bound=nn.Module)


def copied(model: Model, memo: dict[int, Any] | None = None) -> Model:
    """A deep copy of a model, in which an expanded buffer (one value that stands for many) can be written to.

    Args:
        model: is not changed.
        memo: what stands for objects that are not to be copied, by their `id`.

    Raises:
        ModelError: the model holds something that cannot be copied, that is compiled, or a function that would go
            on using the original; the message names it.
    """
    check_whole(model)
    check_closures(model)
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:  # a __deepcopy__ of the user's may raise anything
        raise ModelError(
            f"the model cannot be copied: {_obstacle(model)} stands in the way ({type(error).__name__}: {error}); take "
            "it out before quantizing, or make it copyable"
        ) from error
    _fill_expanded_buffers(copied)
    return copied


def _fill_expanded_buffers(model: nn.Module) -> None:
    filled: dict[int, Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and _is_expanded(buffer):
                module._buffers[name] = filled.setdefault(id(buffer), buffer.contiguous())


def _is_expanded(tensor: Tensor) -> bool:
    strided = tensor.layout is torch.strided
    return strided and any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _obstacle(model: nn.Module) -> str:
    for name, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in ("_modules", "_parameters", "_buffers")}
        for attribute, value in {**own, **module._parameters, **module._buffers}.items():
            if not _is_copyable(value):
                return f"{attribute!r} of {f'module {name!r}' if name else 'the model itself'}"
    return "something that it holds"


def _is_copyable(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True
