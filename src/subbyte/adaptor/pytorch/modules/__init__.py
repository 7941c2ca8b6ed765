"""Module types that the library knows: one small file each, registered at import."""

from subbyte.adaptor.pytorch.modules import (  # noqa: F401  (they register)
    activation,
    convolution,
    embedding,
    float_only,
    linear,
    recurrent,
)
from subbyte.adaptor.pytorch.modules.float_only import FloatHandler
from subbyte.adaptor.pytorch.modules.handler import ModuleHandler, WeightedHandler
from subbyte.adaptor.pytorch.modules.recurrent import RecurrentHandler
from subbyte.adaptor.pytorch.modules.registry import handler_of, register_module, registered_modules

__all__ = [
    "FloatHandler",
    "ModuleHandler",
    "RecurrentHandler",
    "WeightedHandler",
    "handler_of",
    "register_module",
    "registered_modules",
]
