"""Converted Linear, Conv1d and Conv2d of weights of -1, 0 and +1 on inputs of two or three levels, by popcount."""

from itertools import pairwise

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.kernels.convolution import KernelConvolution, uneven_padding, window_of
from subbyte.adaptor.pytorch.kernels.kernel_module import EXACT_IN_INT32, CodesOfX, IntegerKernelModule
from subbyte.adaptor.pytorch.kernels.linear import KernelLinear
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.modules.convolution import ConvolutionHandler
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.adaptor.pytorch.weight import float_bias, output_scale
from subbyte.kernels import used_isa
from subbyte.kernels.binary_conv2d import binary_conv2d
from subbyte.kernels.binary_linear import binary_linear
from subbyte.kernels.binary_weight import BinaryWeight, Levels
from subbyte.kernels.packing import pack_codes
from subbyte.numerics import Affine, Codebook, scheme_of
from subbyte.spec import TensorSpec

LARGEST_LEVEL = 128


class SignWeight(PanelWeight):
    """A packed weight of -1, 0 and +1 laid out as signs, and masks where it needs them."""

    @property
    def packed(self) -> Tensor:  # type: ignore[override]
        values = self.laid_out.values().flatten(1)
        values = values.T if self.is_transposed else values
        codes = torch.zeros_like(values, dtype=torch.uint8)
        for code, value in reversed(
            list(enumerate(self.spec.dtype.values or ()))
        ):  # of equal values the first is written
            codes[values == int(value)] = code
        return pack_codes(codes, self.spec.dtype.bits)


class BinaryModule(IntegerKernelModule):
    """A converted op that runs by popcount."""

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        spec = module.weight.spec
        if spec.dtype.kind != "codebook" or type(scheme_of(spec)) is not Codebook:
            return False
        return {-1.0, 0.0, 1.0}.issuperset(spec.dtype.values or ()) and spec.granularity.kind != "per_group"

    @classmethod
    def runs(cls, module: ConvertedWeighted, quantizer: InputQuantizer | None) -> bool:
        if quantizer is None or levels_of(quantizer.spec) is None or not cls.shares_scale(quantizer):
            return False
        return quantizer.max_grid * module.weight.magnitude < EXACT_IN_INT32

    def lay_out(self) -> None:
        tensor = self.weight.tensor
        is_transposed = self.handler.channel_axis == 1
        values = tensor.grid().to(torch.int8)
        values = values.T if is_transposed else values
        values = values.unsqueeze(2) if values.ndim == 3 else values
        scale = output_scale(self, self.handler, tensor.params, self.weight.spec, self.norm_factor)
        scale = scale.reshape(-1).expand(len(values)).contiguous()
        laid_out = BinaryWeight.of(values, scale, getattr(self, "groups", 1))
        SignWeight.take(self.weight, laid_out, 0, is_transposed=is_transposed)
        bias = float_bias(self)
        self.keep_bias(torch.empty(0, device=scale.device) if bias is None else laid_out.in_panels(bias))

    @property
    def kernel(self) -> str:
        return f"{used_isa()}: integers first on packed codes, by popcount"


class BinaryLinear(BinaryModule, KernelLinear):
    """A converted Linear that runs by popcount."""

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        return KernelLinear.fits(module) and super().fits(module)

    def on_codes(self, x: Tensor, codes: CodesOfX) -> Tensor:
        levels = levels_of(codes.spec)
        assert levels is not None
        rows = x.reshape(-1, x.shape[-1])
        y = binary_linear(rows, self.weight.laid_out, self.kernel_bias, levels, codes.scale, codes.zero_point)
        return y.view(*x.shape[:-1], y.shape[-1])


class BinaryConvolution(BinaryModule, KernelConvolution):
    """A converted Conv1d or Conv2d that runs by popcount."""

    @classmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        handler, options = module.handler, vars(module)
        if not isinstance(handler, ConvolutionHandler) or handler.dimensions > 2 or options["padding_mode"] != "zeros":
            return False
        # A padded value is worth 0, which the levels may lack: only the kernel can pad, alike at both ends.
        return not any(uneven_padding(options)) and super().fits(module)

    def lay_out(self) -> None:
        vars(self)["kernel_window"] = window_of(vars(self))
        super().lay_out()

    def on_images(self, x: Tensor, codes: CodesOfX) -> Tensor:
        levels = levels_of(codes.spec)
        assert levels is not None
        weight, window = self.weight.laid_out, self.kernel_window
        return binary_conv2d(x, weight, self.kernel_bias, levels, codes.scale, codes.zero_point, window)


def levels_of(spec: TensorSpec) -> Levels | None:
    """The levels of a type that has two or three, evenly spaced whole numbers; None of others."""
    low, high = spec.qmin, spec.qmax
    if spec.dtype.kind == "integer":
        few = 1 <= high - low <= 2 and isinstance(scheme_of(spec), Affine)
        return Levels(low, high, high - low + 1, True) if few else None
    values = sorted(set(spec.dtype.values or ()))
    whole = spec.dtype.has_integer_values and spec.dtype.max_magnitude <= LARGEST_LEVEL
    if not whole or len(values) not in (2, 3) or type(scheme_of(spec)) is not Codebook:
        return None
    steps = {upper - lower for lower, upper in pairwise(values)}
    return Levels(int(values[0]), int(values[-1]), len(values), False) if len(steps) == 1 else None
