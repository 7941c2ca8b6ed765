"""Where a quantized op's weight comes from: a float parameter with a quantizer, or packed codes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.modules import WeightedHandler
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.calibration import calibrate_tensor, params_of_tensor
from subbyte.errors import CalibrationError, TrainingError
from subbyte.numerics import Learned, QuantizedTensor, expand, scheme_of, to_blocks
from subbyte.spec import QuantParams, TensorSpec


@dataclass(frozen=True)
class WeightOperand:
    """What an op needs of its weight to compute integers first.

    Args:
        grid: grid values (fp32) in the weight's shape.
        scale: for each output channel, BatchNorm's factor included: [] or of a shape that broadcasts against the
            output; of a per_group weight the shape that QuantParams tells.
        bias: likewise for each output channel, fp32, BatchNorm's included; or None.
        magnitude: the largest sum of |grid| that one sum runs over.
        has_integer_grid: whether grid values are whole numbers.
    """

    grid: Tensor
    scale: Tensor
    bias: Tensor | None
    magnitude: float
    has_integer_grid: bool

    def values(self, spec: TensorSpec, handler: WeightedHandler) -> Tensor:
        """The weight's values (fp32), BatchNorm's factor included."""
        if spec.granularity.kind == "per_group":
            return self.grid * expand(self.scale, self.grid.shape, spec)
        return self.grid * self.scale if self.scale.ndim == 0 else fold_into(self.grid, self.scale, handler)

    def rows(self, index: Tensor, spec: TensorSpec) -> Tensor:
        """The values (fp32) of some rows of a table.

        Raises:
            IndexError: an index is out of range; none counts from the end.
        """
        rows = self.grid.index_select(0, index.reshape(-1)).view(*index.shape, -1)
        if self.scale.ndim == 0:
            return rows * self.scale
        scale = self.scale[index]
        if spec.granularity.kind == "per_channel":
            return rows * scale.unsqueeze(-1)
        size = min(spec.granularity.group_size, rows.shape[-1])
        return rows * scale.repeat_interleave(size, -1)[..., : rows.shape[-1]]


class WeightQuantizer(Quantizer):
    """Quantizes a weight by parameters found once; what it gives is cached until weight or parameters change.

    In a group of processes nothing is cached: DistributedDataParallel writes into BatchNorm's statistics before each
    forward, and FSDP2 gathers weights for one, without a trace in their versions.
    """

    def __init__(self, name: str, spec: TensorSpec) -> None:
        super().__init__(name, spec)
        self._cache: tuple[Any, WeightOperand] | None = None

    def train(self, mode: bool = True) -> "WeightQuantizer":
        # Writes through `.data` bump no version; a training phase is where they happen.
        self._cache = None
        return super().train(mode)

    def calibrate(self, weight: Tensor) -> None:
        """Find scale and zero point of `weight`.

        Raises:
            CalibrationError: it is not finite.
        """
        try:
            self.set_params(calibrate_tensor(weight, self.spec))
        except CalibrationError as error:
            raise CalibrationError(f"weight of op {self.name!r}: {error}") from None

    @property
    def params(self) -> QuantParams:
        zero_point = self.current_zero_point() if self.spec.dtype.kind == "integer" else None
        return QuantParams(self.current_scale(), zero_point)

    def reparametrized(self, weight: Tensor) -> Tensor:
        """What of a weight is quantized: itself, unless its gradient says otherwise."""
        return weight if self.gradient is None else self.gradient.reparametrized(weight)

    def params_of(self, weight: Tensor) -> QuantParams:
        """Scale and zero point of a weight as it is quantized: those that are set, unless they follow it."""
        follows = self.gradient is not None and self.gradient.follows_weight and not self.learned
        return params_of_tensor(weight.detach().float(), self.spec) if follows else self.params

    def fake(self, x: Tensor) -> Tensor:
        gradient = self.gradient
        if self.training_rule is not None or gradient is None:
            return super().fake(x)
        params = self.training_params() if self.learned else self.params_of(x)
        return self.by_gradient(gradient, x, params, self.values_of_a_scale(x))

    def learned_value(self, x: Tensor) -> Learned | None:
        # Where the range is not learned it may follow the weight, which `fake` sees to.
        return super().learned_value(self.reparametrized(x)) if self.learned else None

    def operand(self, module: Any, handler: WeightedHandler, norm: FoldedBatchNorm | None) -> WeightOperand:
        """The weight of `module` ready for use; quantized again only when something changed."""
        if torch.compiler.is_compiling():
            return self._quantize(module, handler, norm)
        if _has_processes():
            with torch.no_grad():
                return self._quantize(module, handler, norm)
        key = self._key(module, norm)
        if self._cache is None or self._cache[0] != key:
            with torch.no_grad():
                self._cache = (key, self._quantize(module, handler, norm))
        return self._cache[1]

    def _key(self, module: Any, norm: FoldedBatchNorm | None) -> tuple[Any, ...]:
        weight = module.weight
        tensors = [weight, getattr(module, "bias", None), self.scale, self.zero_point]
        if norm is not None:
            tensors += norm.fold_inputs()
        # Where the weight lies, too: `weight.data = other` changes neither object nor version.
        versions = [tensor._version for tensor in tensors if tensor is not None]
        return (self.spec, self.gradient, weight.data_ptr(), *map(id, tensors), *versions)

    def _quantize(self, module: Any, handler: WeightedHandler, norm: FoldedBatchNorm | None) -> WeightOperand:
        factor, bias = folded(module, norm)
        weight = self.reparametrized(module.weight.detach())
        if factor is not None and folds_first(self.spec):
            weight, factor = fold_into(weight, factor, handler), None
        params = self.params_of(weight)
        try:
            grid = scheme_of(self.spec).snap(weight.float().contiguous(), params, self.spec)
        except RuntimeError as error:
            self.check_learned(error)
            raise
        scale = output_scale(module, handler, params, self.spec, factor)
        bias = None if bias is None else handler.over_output(bias)
        return WeightOperand(grid, scale, bias, magnitude(grid, self.spec, handler), self.has_integer_grid)

    def packed(self, module: Any, handler: WeightedHandler, norm: FoldedBatchNorm | None) -> QuantizedTensor:
        """The weight as packed codes.

        Raises:
            TrainingError: it is not finite, as codes could not tell.
        """
        factor, _ = folded(module, norm)
        weight = self.reparametrized(module.weight.detach())
        if factor is not None and folds_first(self.spec):
            weight = fold_into(weight, factor, handler)
        # A sign of NaN would be +1, and the scale of its row 1.
        if not all(bool(torch.isfinite(each).all()) for each in (module.weight, weight)):
            raise TrainingError(
                f"the weight of op {self.name!r} holds NaN or infinity; train anew, with "
                "subbyte.training.RangeMonitor, which tells when it comes"
            )
        params = self.params_of(weight)
        zero_point = None if params.zero_point is None else params.zero_point.clone()
        return QuantizedTensor.from_float(weight, QuantParams(params.scale.clone(), zero_point), self.spec)


def _has_processes() -> bool:
    """Whether other processes may write into this one's tensors: their versions tell nothing of that."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def weight_to_quantize(module: Any) -> Tensor:
    """The weight of a prepared module as it is quantized: BatchNorm's factor in it where it is quantized with that."""
    weight: Tensor = module.weight_quantizer.reparametrized(module.weight.detach())
    if not (module.norm and folds_first(module.weight_spec)):
        return weight
    factor, _ = module.norm[0].factor_and_bias(None)
    return fold_into(weight, factor, module.handler)


def folds_first(spec: TensorSpec) -> bool:
    """Whether BatchNorm goes into the weight before it is quantized: one scale cannot hold its factors."""
    return spec.granularity.kind == "per_tensor"


def folded(module: Any, norm: FoldedBatchNorm | None) -> tuple[Tensor | None, Tensor | None]:
    """BatchNorm's factor for each output channel (None without one), and the bias with BatchNorm's."""
    bias = float_bias(module)
    if norm is None or norm.training:
        return None, bias
    return norm.factor_and_bias(bias)


def fold_into(weight: Tensor, factor: Tensor, handler: WeightedHandler) -> Tensor:
    """The weight times BatchNorm's factor of its output channel."""
    shape = [1] * weight.ndim
    shape[handler.channel_axis] = weight.shape[handler.channel_axis]
    # Of a transposed convolution with groups, the channels of each group follow one another.
    per_channel = factor.reshape(-1, shape[handler.channel_axis])
    if len(per_channel) == 1:
        return weight * per_channel[0].reshape(shape)
    by_group: Tensor = weight.unflatten(0, (len(per_channel), -1))
    return (by_group * per_channel.reshape(len(per_channel), *shape)).flatten(0, 1)


def float_bias(module: Any) -> Tensor | None:
    """A module's bias in fp32, or None."""
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach().float()


def output_scale(
    module: Any, handler: WeightedHandler, params: QuantParams, spec: TensorSpec, factor: Tensor | None
) -> Tensor:
    """The weight's scale as an op applies it, times BatchNorm's factor: see WeightOperand."""
    scale = scheme_of(spec).grid_scale(params)
    if spec.granularity.kind != "per_group":
        scale = handler.channel_scale(module, scale)
        scale = scale if factor is None else scale * factor
        return handler.over_output(scale) if scale.ndim else scale
    if factor is None:
        return scale
    shape = [1] * scale.ndim
    shape[handler.channel_axis] = -1
    return scale * factor.reshape(shape)


def magnitude(grid: Tensor, spec: TensorSpec, handler: WeightedHandler) -> float:
    """The largest sum of |grid| over the elements that one exact sum runs over."""
    if grid.numel() == 0:
        return 0.0
    if torch.compiler.is_compiling():  # values are not known: what the shape allows
        row = grid.numel() // grid.shape[handler.channel_axis]
        return min(spec.granularity.group_size or row, row) * scheme_of(spec).max_grid(spec)
    if spec.granularity.kind == "per_group":
        blocks, _ = to_blocks(grid.abs(), spec)
        return float(blocks.sum(1, dtype=torch.float64).max())
    by_channel = grid.abs().movedim(handler.channel_axis, 0).flatten(1)
    return float(by_channel.sum(1, dtype=torch.float64).max())
