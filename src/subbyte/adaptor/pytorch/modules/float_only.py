"""Modules with a weight that stay float here: shown in the report, and known to data flow."""

from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.modules.handler import ModuleHandler
from subbyte.adaptor.pytorch.modules.registry import register_module
from subbyte.errors import ModelError


class FloatHandler(ModuleHandler):
    """A type whose weight is not quantized."""

    holds_weight = True
    forms = {}

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type  # type: ignore[misc]  # one class serves several types

    def check(self, module: nn.Module, name: str) -> None:
        raise ModelError(f"op {name!r}: {self.op_type} has no quantized form in this version; leave it fp32")


class BilinearHandler(FloatHandler):
    """`Bilinear`, weight [out, in1, in2]."""

    def macs(self, module: Any, inputs: tuple[Any, ...], output: Tensor) -> int:
        return int(output.numel() * module.in1_features * module.in2_features)


register_module(nn.Bilinear, BilinearHandler("Bilinear"))
register_module(nn.EmbeddingBag, FloatHandler("EmbeddingBag"))
