"""Which module types can be quantized, and how."""

import inspect
from functools import cache

from torch import nn

from subbyte.adaptor.pytorch.modules.handler import ModuleHandler
from subbyte.adaptor.pytorch.swap import float_class
from subbyte.capability import register_op_type
from subbyte.errors import ConfigError

_HANDLERS: dict[str, ModuleHandler | None] = {}


def register_module(float_class: type[nn.Module] | str, handler: ModuleHandler | None) -> None:
    """Let modules of a type be quantized.

    Args:
        float_class: the type, or its import path where the package that has it may not be installed.
        handler: how, and the `op_type` under which capability files speak of it; None keeps the type float
            although a base of it has a handler. A subclass of `float_class` is covered as long as it keeps its
            forward and the methods that forward calls.

    Raises:
        ConfigError: the type has a handler already.
    """
    path = float_class if isinstance(float_class, str) else _path(float_class)
    if path in _HANDLERS:
        raise ConfigError(f"module type {path} has a handler already")
    _HANDLERS[path] = handler
    if handler is None:
        register_op_type(path.rpartition(".")[2], {})
    else:
        register_op_type(handler.op_type, handler.forms)


def handler_of(module: nn.Module) -> ModuleHandler | None:
    """The handler of a module's float class; None where it has none."""
    cls = float_class(module)
    for base in cls.__mro__:
        if _path(base) in _HANDLERS:
            handler = _HANDLERS[_path(base)]
            return handler if handler is None or _covers(handler, base, cls) else None
    return None


def _covers(handler: ModuleHandler, base: type, cls: type) -> bool:
    """Whether a subclass computes as its base: of one that runs by its own code, only the arguments matter."""
    names = _behind(base) if handler.role == "weighted" else {"forward"}
    return all(inspect.getattr_static(cls, name) is inspect.getattr_static(base, name) for name in names)


@cache
def _behind(cls: type) -> frozenset[str]:
    """What a class has of the names that calling it comes to: `__call__`, forward, what these mention, and so on."""
    found: set[str] = set()
    pending = ["__call__", "forward"]
    while pending:
        name = pending.pop()
        method = inspect.getattr_static(cls, name, None)
        if name not in found and method is not None:
            found.add(name)
            code = getattr(inspect.unwrap(method), "__code__", None)
            pending.extend(code.co_names if code is not None else ())
    return frozenset(found)


def registered_modules() -> dict[str, ModuleHandler | None]:
    """All handlers by the import path of their type."""
    return dict(_HANDLERS)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
