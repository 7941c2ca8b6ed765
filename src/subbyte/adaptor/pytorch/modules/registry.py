"""Which module types can be quantized, and how."""

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
            although a base of it has a handler. A subclass of `float_class` is covered as long as it keeps its forward.

    Raises:
        ConfigError: the type has a handler already.
    """
    path = float_class if isinstance(float_class, str) else _path(float_class)
    if path in _HANDLERS:
        raise ConfigError(f"module type {path} has a handler already")
    _HANDLERS[path] = handler
    register_op_type(path.rpartition(".")[2] if handler is None else handler.op_type)


def handler_of(module: nn.Module) -> ModuleHandler | None:
    """The handler of a module's float class; None where it has none."""
    cls = float_class(module)
    for base in cls.__mro__:
        if _path(base) in _HANDLERS:
            return _HANDLERS[_path(base)] if cls.forward is vars(base).get("forward", cls.forward) else None
    return None


def registered_modules() -> dict[str, ModuleHandler | None]:
    """All handlers by the import path of their type."""
    return dict(_HANDLERS)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
