"""Activation functions as modules: the input is quantized, the function is computed in float."""

from typing import ClassVar

from torch import Tensor, nn

from subbyte.adaptor.pytorch.inputs import quantized_scores
from subbyte.adaptor.pytorch.modules.handler import ModuleHandler
from subbyte.adaptor.pytorch.modules.registry import register_module
from subbyte.adaptor.pytorch.quantizer import InputQuantizer


class ActivationHandler(ModuleHandler):
    """A function of one tensor, element by element or along an axis."""

    op_type: ClassVar[str]

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type  # type: ignore[misc]  # one class serves every function


class SoftmaxHandler(ActivationHandler):
    """`Softmax`, whose scores may be masked."""

    def quantized(self, x: Tensor, quantizer: InputQuantizer | None) -> Tensor:
        return quantized_scores(x, quantizer)


register_module(nn.Softmax, SoftmaxHandler("Softmax"))
for _activation in (
    nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.ELU, nn.LeakyReLU,
):  # fmt: skip
    register_module(_activation, ActivationHandler(_activation.__name__))
