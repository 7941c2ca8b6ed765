"""The classes that quantized modules are swapped to, and how they compute."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.inputs import InputQuantizers, learned_value, quantized, snapped
from subbyte.adaptor.pytorch.made_again import made_again
from subbyte.adaptor.pytorch.modules import ModuleHandler, WeightedHandler
from subbyte.adaptor.pytorch.number_format import KeepsFormat
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.quantizer import InputQuantizer, check_finite, checking_learned
from subbyte.adaptor.pytorch.swap import Swapped, float_class, positional
from subbyte.adaptor.pytorch.weight import (
    WeightOperand,
    WeightQuantizer,
    fold_into,
    folded,
    folds_first,
)
from subbyte.numerics import accumulator, as_dtype, rescale, wants_gradient, with_gradient_way, without_autocast
from subbyte.spec import OpConfig, TensorSpec


class QuantizedModule(Swapped):
    """Mixin of a module whose input is quantized and whose function is computed in float."""

    handler: ModuleHandler
    op_name: str
    op_config: OpConfig
    input_quantizers: InputQuantizers

    def own_quantizers(self) -> InputQuantizers:
        return self.input_quantizers

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            x, *extra = positional(self, args, kwargs)  # type: ignore[arg-type]
            slots = self.input_quantizers.here()
            return self.compute(x, slots[0] if slots else None, *extra)

    def compute(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        """The function of the quantized input."""
        y: Tensor = float_class(self).forward(self, self.handler.quantized(x, quantizer), *extra)  # type: ignore[arg-type]
        return y


class WeightedModule(KeepsFormat, QuantizedModule):
    """Mixin of a module with a quantized weight: integers first.

    `y = (sum (qx - zx)(qw - zw)) * (sx * sw) + b`; the groups of a per_group weight are added in order.

    Attributes:
        float_weight: the same of two modules that shared a float weight, whatever each has made of it.
    """

    handler: WeightedHandler
    weight: Any
    float_weight: int
    weight_spec: TensorSpec
    cast_to: torch.dtype | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.cast_to = fn(torch.empty(0, dtype=self.row_dtype, device=self.weight.device)).dtype
        return super()._apply(fn, recurse)

    @property
    def row_dtype(self) -> torch.dtype:
        """Of what a table gives: the weight's, until the model is cast. Other ops give the type of their input."""
        return self.cast_to or self.weight.dtype

    @property
    @abstractmethod
    def awaits_norm(self) -> bool:
        """Whether it applies a BatchNorm that has to follow it."""

    @abstractmethod
    def operand(self) -> WeightOperand:
        """The weight, ready for use."""

    @abstractmethod
    def read_weight(self) -> Tensor:
        """What the model's own code gets that reads the weight past this module."""

    @abstractmethod
    def rows(self, index: Tensor) -> Tensor:
        """Rows of a table (fp32)."""

    def compute(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        if not self.handler.takes_activation:
            return self.rows(x).to(self.row_dtype)
        if self.awaits_norm:
            awaited.expect(self.input_quantizers.run, self.op_name)
        operand = self.operand()
        if quantizer is None or not wants_gradient(x):
            return self.exact_value(x, quantizer, operand, *extra)
        with torch.no_grad():
            value = self.exact_value(x, quantizer, operand, *extra)
        # Back as in training, though the op itself, in eval(), learns nothing.
        return with_gradient_way(value, self.on_float_input(quantized(x, quantizer), operand, *extra))

    def exact_value(self, x: Tensor, quantizer: InputQuantizer | None, operand: WeightOperand, *extra: Any) -> Tensor:
        """The result, in x's dtype; of a quantized input without a gradient."""
        grid, scale = snapped(x, quantizer)
        if quantizer is None or scale is None:
            return self.on_float_input(x, operand, *extra)
        integer = operand.has_integer_grid and quantizer.has_integer_grid
        kind = accumulator(operand.magnitude * quantizer.max_grid, integer=integer)
        inputs, weight = as_dtype(grid, kind), as_dtype(operand.grid, kind)
        with without_autocast(x.device):
            y = self.integers_first(inputs, weight, scale, operand, *extra)
        return as_dtype(y, x.dtype)

    def integers_first(
        self, inputs: Tensor, weight: Tensor, scale: Tensor, operand: WeightOperand, *extra: Any
    ) -> Tensor:
        """The result (fp32) from grid values of input and weight, of a type that holds every sum."""
        if self.weight_spec.granularity.kind == "per_group":
            return self.sum_of_groups(inputs, weight, scale, operand, *extra)
        total = self.handler.apply(self, inputs, weight, *extra)
        return rescale(total, scale, operand.scale, operand.bias)

    def on_float_input(self, x: Tensor, operand: WeightOperand, *extra: Any) -> Tensor:
        """A float input meets the dequantized weight."""
        weight = operand.values(self.weight_spec, self.handler).to(x.dtype)
        y = self.handler.apply(self, x, weight, *extra)
        return y if operand.bias is None else y + operand.bias.to(y.dtype)

    def sum_of_groups(
        self, inputs: Tensor, weight: Tensor, scale: Tensor, operand: WeightOperand, *extra: Any
    ) -> Tensor:
        """Each group exact, scaled by its own scale, and added in storage order."""
        size = self.weight_spec.granularity.group_size
        result: Tensor | None = None
        for x, w, w_scale in self.handler.group_terms(self, inputs, weight, operand.scale, size):
            total = self.handler.apply(self, x, w, *extra)
            term = rescale(total, scale, self.handler.over_output(w_scale), None)
            result = term if result is None else result + term
        assert result is not None
        return result if operand.bias is None else result + operand.bias


class PreparedWeighted(WeightedModule):
    """A weighted module that keeps its float weight: what trials and training run on."""

    weight: Tensor
    training: bool
    weight_quantizer: WeightQuantizer
    _modules: dict[str, torch.nn.Module | None]
    norm: tuple[FoldedBatchNorm, ...]  # a tuple, so that it is not a submodule twice

    @property
    def awaits_norm(self) -> bool:
        return bool(self.norm) and not self.norm[0].training

    @property
    def folded_norm(self) -> FoldedBatchNorm | None:
        return self.norm[0] if self.norm else None

    def operand(self) -> WeightOperand:
        # Straight from the dict, as nn.Module's lookups cost much of the overhead of a small op.
        quantizer: Any = self._modules["weight_quantizer"]
        operand: WeightOperand = quantizer.operand(self, self.handler, self.folded_norm)
        return operand

    def rows(self, index: Tensor) -> Tensor:
        return self.operand().rows(index, self.weight_spec)

    def compute(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        if self.training or not self.quantizes:
            if self.awaits_norm:
                awaited.expect(self.input_quantizers.run, self.op_name)
            return self.in_float(x, quantizer, *extra)
        return super().compute(x, quantizer, *extra)

    def read_weight(self) -> Tensor:
        """The float weight while calibrating, the quantized one otherwise."""
        if not self.quantizes:
            return self.weight
        if self.training:
            return self.fake_weight(self.weight, None).to(self.row_dtype)
        return self.operand().values(self.weight_spec, self.handler).to(self.row_dtype)

    @property
    def quantizes(self) -> bool:
        """Whether this forward is one of the quantized model, not of calibration."""
        return self.input_quantizers.run.quantizes

    def in_float(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        """Float arithmetic: on float values while calibrating, on fake-quantized ones in training."""
        if self.input_quantizers.run.phase == "observe":
            if quantizer is None:
                check_finite(x, self.op_name)
            # As a float module does, to the last bit: what is observed must not depend on which ops are prepared.
            observed: Tensor = float_class(self).forward(self, quantized(x, quantizer), *extra)  # type: ignore[arg-type]
            return observed
        norm = self.folded_norm
        factor, bias = self._factor_and_bias(norm)
        y = self._learned_product(x, quantizer, norm) if quantizer is not None else None
        if y is None:
            y = self._product(x, quantizer, norm, *extra)
        if factor is not None:
            y = y * self.handler.over_output(factor).to(y.dtype)
        return y if bias is None else y + self.handler.over_output(bias).to(y.dtype)

    def _product(
        self, x: Tensor, quantizer: InputQuantizer | None, norm: FoldedBatchNorm | None, *extra: Any
    ) -> Tensor:
        """The linear map of what the quantizers give, each by itself."""
        given, x = x, quantized(x, quantizer)
        weight = self.fake_weight(self.weight, norm) if self.quantizes else self.weight
        weight = weight.to(x.dtype if x.is_floating_point() else self.row_dtype)
        with made_again(x, partial(quantized, given.detach(), quantizer)):
            return self.handler.apply(self, x, weight, *extra)

    def _learned_product(self, x: Tensor, quantizer: InputQuantizer, norm: FoldedBatchNorm | None) -> Tensor | None:
        """The same as one node of autograd, where the handler has one for it; else None."""
        is_folded_first = norm is not None and folds_first(self.weight_spec)
        if is_folded_first or torch.is_autocast_enabled(x.device.type) or not self.handler.takes_learned(self, x):
            return None
        values = learned_value(x, quantizer)
        weight = self.weight_quantizer.learned_value(self.weight)
        if values is None or weight is None or not (values.has_kernels and weight.has_kernels):
            return None
        with checking_learned(quantizer, self.weight_quantizer):
            return self.handler.apply_learned(self, values, weight)

    def _factor_and_bias(self, norm: FoldedBatchNorm | None) -> tuple[Tensor | None, Tensor | None]:
        """BatchNorm's factor and the bias with BatchNorm's, where it does not run by itself; else the own bias."""
        own = getattr(self, "bias", None)
        if norm is None or norm.training:
            return None, own
        if self.training and self.weight_quantizer.training_rule is None:
            return norm.learned_factor_and_bias(own)
        return folded(self, norm)

    def fake_weight(self, weight: Tensor, norm: FoldedBatchNorm | None) -> Tensor:
        """The fake-quantized weight; a per-tensor one is folded, quantized and unfolded."""
        weight = self.weight_quantizer.reparametrized(weight)
        if norm is None or not folds_first(self.weight_spec):
            return self.weight_quantizer.fake(weight)
        factor, _ = norm.factor_and_bias(None)
        inverse = torch.where(factor != 0, 1 / factor, 0.0)
        return fold_into(self.weight_quantizer.fake(fold_into(weight, factor, self.handler)), inverse, self.handler)


class ConvertedWeighted(WeightedModule):
    """A weighted module that holds packed codes and no float weight."""

    is_packed: ClassVar[bool] = True
    weight: PackedWeight
    norm_factor: Tensor | None
    bias: Tensor | None
    awaits_norm: bool = False

    @property
    def weight_spec(self) -> TensorSpec:  # type: ignore[override]
        return self.weight.spec

    def operand(self) -> WeightOperand:
        return self.weight.operand(self, self.handler)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.weight.dtype = self.row_dtype
        return self

    def read_weight(self) -> Tensor:
        return self.weight.values()

    def rows(self, index: Tensor) -> Tensor:
        return self.weight.tensor.rows(index)
