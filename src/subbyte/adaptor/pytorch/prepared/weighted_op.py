"""A weighted op of a prepared model: its weight as it is quantized, and ways to change it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.modules import WeightedHandler
from subbyte.adaptor.pytorch.prepared.new_values import give_values
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.adaptor.pytorch.weight import WeightQuantizer, fold_into, folds_first
from subbyte.numerics import fake_quantize
from subbyte.spec import QuantParams, TensorSpec


@dataclass(frozen=True)
class WeightedOp:
    """A view of one op; what it is asked for it reads from the module each time.

    Args:
        module: of the prepared model.
        shares_weight_with: the other modules, by name, whose weight is the same parameter.
    """

    module: PreparedWeighted
    shares_weight_with: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.module.op_name

    @property
    def type(self) -> str:
        return self.handler.op_type

    @property
    def handler(self) -> WeightedHandler:
        return self.module.handler

    @property
    def spec(self) -> TensorSpec:
        """Of the weight."""
        return self.module.weight_spec

    @property
    def quantizer(self) -> WeightQuantizer:
        return self.module.weight_quantizer

    @property
    def params(self) -> QuantParams:
        """Scale and zero point of the weight."""
        return self.quantizer.params

    @property
    def input_quantizers(self) -> list[InputQuantizer]:
        """The quantizers of its input, one for each place that it is called from; none where that stays float."""
        return list(dict.fromkeys(self.module.input_quantizers))

    @property
    def weight(self) -> Tensor:
        """The weight (fp32) that is quantized: with BatchNorm's factor in it where it is folded first."""
        weight, factor = self.module.weight.detach().float(), self._folded_factor()
        return weight if factor is None else fold_into(weight, factor, self.handler)

    def quantized(self) -> Tensor:
        """The values (fp32) that the weight is quantized to."""
        return fake_quantize(self.weight, self.params, self.spec)

    def write_weight(self, weight: Tensor) -> None:
        """Replace the float weight; scale and zero point stay.

        Args:
            weight: fp32, as `weight` gives it. Values on the grid keep their codes.
        """
        factor = self._folded_factor()
        if factor is not None:
            inverse = torch.where(factor != 0, 1 / factor, 0.0)
            weight = fold_into(weight, inverse, self.handler)
        give_values(self.module.weight, weight)

    def write_params(self, params: QuantParams) -> None:
        """Replace scale and zero point of the weight.

        Raises:
            ConfigError: they are not ones that the spec can have.
        """
        self.quantizer.set_params(params)

    def calibrate(self) -> None:
        """Find scale and zero point of the weight by its spec's algorithm.

        Raises:
            CalibrationError: the weight is not finite.
        """
        self.quantizer.calibrate(self.weight)

    def shift_output(self, shift: Tensor) -> None:
        """Add a constant to each output channel: to BatchNorm's bias or mean, or to the op's own bias.

        Args:
            shift: [channels], fp32.
        """
        norm: Any = self.module.folded_norm
        if norm is None:
            self._shift_bias(shift)
        elif norm.bias is not None:
            give_values(norm.bias, norm.bias.detach() + shift.to(norm.bias.dtype))
        else:
            factor, _ = norm.factor_and_bias(None)
            norm.running_mean = norm.running_mean - torch.where(factor != 0, shift / factor, 0.0)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """The linear map of float values, without bias and BatchNorm's factor where that is not in the weight."""
        return self.handler.apply(self.module, x, weight.to(x.dtype))

    def scaled_output(self, x: Tensor, weight: Tensor) -> Tensor:
        """`apply`, with BatchNorm's factor in any case; still without bias."""
        y, norm = self.apply(x, weight), self.module.folded_norm
        if norm is None or folds_first(self.spec):
            return y
        factor, _ = norm.factor_and_bias(None)
        return y * self.handler.over_output(factor).to(y.dtype)

    def by_channel(self, y: Tensor) -> Tensor:
        """What a call gave, as [output channels, values]."""
        axis = -self.handler.over_output(y.new_ones(1)).ndim
        return y.movedim(axis, 0).flatten(1) if y.ndim > 1 else y[:, None]

    def matrix(self, weight: Tensor) -> Tensor:
        """A weight as matrices [groups, output channels of a group, inputs], which `columns` are multiplied by.

        Raises:
            ConfigError: the op's map is not of this form.
        """
        return self.handler.as_matrix(self.module, weight)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """The way back from `matrix`."""
        return self.handler.from_matrix(self.module, matrix)

    def columns(self, x: Tensor) -> Tensor:
        """The inputs of a call as [groups, inputs, products]: `matrix(weight) @ columns(x)` are all its results."""
        return self.handler.columns(self.module, x)

    def _folded_factor(self) -> Tensor | None:
        norm = self.module.folded_norm
        if norm is None or not folds_first(self.spec):
            return None
        factor, _ = norm.factor_and_bias(None)
        return factor

    def _shift_bias(self, shift: Tensor) -> None:
        bias = self.module._parameters.get("bias")  # type: ignore[attr-defined]
        if bias is None:
            self.module.bias = nn.Parameter(shift.to(self.module.weight.dtype).clone())  # type: ignore[attr-defined]
        else:
            give_values(bias, bias.detach() + shift.to(bias.dtype))
