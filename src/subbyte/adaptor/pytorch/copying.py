"""Copying a model, and saying what stands in the way where that cannot be done."""

import copy
from typing import Any, TypeVar

from torch import nn

from subbyte.adaptor.pytorch.closures import check_closures
from subbyte.errors import ModelError

Model = TypeVar("Model", bound=nn.Module)


def copied(model: Model, memo: dict[int, Any] | None = None) -> Model:
    """A deep copy of a model.

    Args:
        model: is not changed.
        memo: what stands for objects that are not to be copied, by their `id`.

    Raises:
        ModelError: the model holds something that cannot be copied, or a function that would go on using the
            original; the message names it.
    """
    check_closures(model)
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # a __deepcopy__ of the user's may raise anything
        raise ModelError(
            f"the model cannot be copied: {_obstacle(model)} stands in the way ({type(error).__name__}: {error}); take "
            "it out before quantizing, or make it copyable"
        ) from error


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
