"""Functions that refer to parts of the model that holds them: a deep copy shares functions, and so those parts."""

import dis
import functools
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from subbyte.errors import ModelError

_CONTAINERS = (list, tuple, set, frozenset)
_WHOLE = (type, ModuleType, FunctionType, Tensor)
# Made by Module.compile(); nn.Module leaves it out of copies.
_NOT_COPIED = "_compiled_call_impl"


def check_closures(model: nn.Module) -> None:
    """Refuse a model in which a function (a lambda, a hook) refers to a part of the model; bound methods are fine.

    Raises:
        ModelError: a copy would go on using that part of the original; the message names function and part.
    """
    own = _names(model)
    seen: dict[int, Any] = {}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute == _NOT_COPIED:
                continue
            for function in _reached(value, functools.partial(_copied_parts, own), seen):
                if isinstance(function, FunctionType):
                    place = f"{attribute!r} of {_module(name)}"
                    _check(function, place, own)


def _check(function: FunctionType, place: str, own: dict[int, str]) -> None:
    for held in _reached(function, _shared_parts, {}):
        if id(held) in own:
            raise ModelError(
                f"the model cannot be copied: the function {function.__qualname__!r} in {place} refers to "
                f"{own[id(held)]}, and a copy would go on using the original's; make it a method of the model, or "
                "let it take what it needs as an argument"
            )


def _names(model: nn.Module) -> dict[int, str]:
    """What the parts of a model are called in messages, by id."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    names = {id(tensor): f"tensor {name!r}" for name, tensor in tensors}
    return names | {id(module): _module(name) for name, module in model.named_modules()}


def _module(name: str) -> str:
    return f"module {name!r}" if name else "the model itself"


def _reached(root: Any, parts: Callable[[Any], Iterable[Any]], seen: dict[int, Any]) -> Iterator[Any]:
    """Each object that is reached from `root` and not in `seen`, once."""
    pending = [root]
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            yield value
            pending.extend(parts(value))


def _copied_parts(own: dict[int, str], value: Any) -> Iterable[Any]:
    """What a deep copy of `value` copies with it."""
    if isinstance(value, _WHOLE) or id(value) in own or hasattr(type(value), "__deepcopy__"):
        return ()
    return (*_parts(value), *getattr(value, "__dict__", {}).values())


def _shared_parts(value: Any) -> Iterable[Any]:
    """What `value` uses when it is called."""
    return _held_by(value) if isinstance(value, FunctionType) else _parts(value)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    return ()


def _held_by(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for instruction in dis.get_instructions(function):
        if instruction.opname == "LOAD_GLOBAL":
            value = function.__globals__.get(instruction.argval)
            if not isinstance(value, FunctionType):  # else all that a library calls would be looked at
                yield value
