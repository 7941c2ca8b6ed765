"""The quantized forms of LSTM, GRU, RNN and their cells: a linear map for each of their matrices."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.modules.recurrent import MATRIX, RecurrentHandler
from subbyte.adaptor.pytorch.number_format import KeepsFormat
from subbyte.adaptor.pytorch.quantized_module import QuantizedModule
from subbyte.adaptor.pytorch.quantizer import InputQuantizer


class Projection(nn.Module):
    """One matrix of a recurrent module, as a linear map; it is swapped as a Linear is.

    The parameters stay the module's, under their names. Once converted, the packed weight is held here.

    Args:
        owner: the recurrent module.
        parameter: the name of the matrix, as in `weight_ih_l0`.
    """

    def __init__(self, owner: nn.Module, parameter: str) -> None:
        super().__init__()
        self.owner = (owner,)  # a tuple, so that it is not a submodule of its own part
        self.parameter = parameter
        self.out_features, self.in_features = self.weight.shape

    @property
    def weight(self) -> Any:
        packed = self._modules.get("weight")
        return self.owner[0]._parameters[self.parameter] if packed is None else packed

    @weight.deleter
    def weight(self) -> None:
        (owner,) = self.owner
        delattr(owner, self.parameter)
        if isinstance(owner, nn.RNNBase):
            owner._init_flat_weights()  # its own list of them

    @property
    def bias(self) -> Any:
        return self.owner[0]._parameters.get(self.parameter.replace("weight", "bias"))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.parameter}, in_features={self.in_features}, out_features={self.out_features}"


class QuantizedRecurrent(KeepsFormat, QuantizedModule):
    """Mixin of a recurrent module whose products are those of its projections."""

    handler: RecurrentHandler

    def compute(self, x: Any, quantizer: InputQuantizer | None, *extra: Any) -> Any:
        return self.handler.run(self, {name: _product(part) for name, part in projections(self).items()}, x, *extra)


def projections(module: Any) -> dict[str, Any]:
    """The linear maps of a recurrent module, each under the name of its matrix less `weight_`."""
    return {name: child for name, child in module._modules.items() if isinstance(child, Projection)}


def add_projections(module: Any) -> dict[str, Any]:
    """Give a recurrent module a linear map for each matrix."""
    for name in module.handler.matrix_names(module):
        setattr(module, name.removeprefix(MATRIX), Projection(module, name))
    return projections(module)


def remove_projections(module: Any) -> None:
    """Make a recurrent module what it was."""
    for name in projections(module):
        delattr(module, name)


def _product(projection: Any) -> Any:
    (quantizer,) = projection.input_quantizers.always or (None,)
    return lambda x: projection.compute(x, quantizer)
