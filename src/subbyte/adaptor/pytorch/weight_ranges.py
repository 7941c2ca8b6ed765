"""Scales and zero points of a model's weights for any spec, each found once."""

from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.modules import RecurrentHandler, WeightedHandler, handler_of
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.adaptor.pytorch.weight import WeightQuantizer, fold_into, folds_first
from subbyte.numerics import QuantizedTensor
from subbyte.spec import QuantParams, TensorSpec


class WeightRanges:
    """What quantizers of weights hold, by op and spec; the weights must not change.

    Args:
        model: that holds the float weights, prepared or not.
        graph: its ops.
    """

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self._model = model
        self._graph = graph
        self._found: dict[tuple[str, TensorSpec], list[QuantParams]] = {}

    def of(self, op: str, spec: TensorSpec) -> list[QuantParams]:
        """Those of each matrix of an op.

        Raises:
            CalibrationError: a weight is not finite, or its scales do not fit in the spec's scale_format.
        """
        if (op, spec) not in self._found:
            self._found[op, spec] = [self._search(op, weight, spec) for weight in self.weights(op)]
        return self._found[op, spec]

    def weights(self, op: str) -> list[Tensor]:
        """The float weights of an op."""
        module = self._model.get_submodule(op)
        handler = handler_of(module)
        return [] if handler is None else handler.weights(module)

    def error(self, op: str, spec: TensorSpec) -> float:
        """The squared difference between the weights of an op, as they are quantized, and the quantized ones."""
        total = 0.0
        for weight, params in zip(self.weights(op), self.of(op, spec), strict=True):
            weight, own_spec = self._folded(op, weight, spec)
            packed = QuantizedTensor.from_float(weight, params, own_spec)
            total += float((packed.dequantize().double() - weight.double()).square().sum())
        return total

    def _search(self, op: str, weight: Tensor, spec: TensorSpec) -> QuantParams:
        weight, own_spec = self._folded(op, weight, spec)
        quantizer = WeightQuantizer(op, own_spec)
        quantizer.calibrate(weight)
        return quantizer.params

    def _folded(self, op: str, weight: Tensor, spec: TensorSpec) -> tuple[Tensor, TensorSpec]:
        """The weight as it is quantized, and the spec with its axis."""
        module: Any = self._model.get_submodule(op)
        handler = handler_of(module)
        linear = LinearHandler() if isinstance(handler, RecurrentHandler) else handler
        assert isinstance(linear, WeightedHandler)
        weight, norm = weight.detach(), self._graph.ops[op].norm
        if norm and folds_first(spec):
            factor, _ = FoldedBatchNorm.factor_and_bias(self._model.get_submodule(norm), None)  # type: ignore[arg-type]
            weight = fold_into(weight, factor, linear)
        return weight, spec.with_axis(linear.channel_axis, linear.group_axis)
