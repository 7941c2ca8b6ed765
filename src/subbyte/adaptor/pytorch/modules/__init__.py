"""Module types that can be quantized: one small file each, registered at import."""

from subbyte.adaptor.pytorch.modules import activation, convolution, embedding, linear  # noqa: F401  (register)
from subbyte.adaptor.pytorch.modules.handler import ModuleHandler, WeightedHandler
from subbyte.adaptor.pytorch.modules.registry import handler_of, register_module, registered_modules

__all__ = ["ModuleHandler", "WeightedHandler", "handler_of", "register_module", "registered_modules"]
