"""Functions of torch.nn.functional that are made of others, opened so that the calls inside are seen."""

import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same code, without its own dispatch at the top: what it calls is dispatched instead."""
    code: types.CodeType = function.__code__
    scope = function.__globals__ | dict.fromkeys(_CHECKS, _never)
    opened = types.FunctionType(code, scope, function.__name__, function.__defaults__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


def _never(*args: Any) -> bool:
    return False


COMPOSITES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: _opened(F.multi_head_attention_forward),
}
