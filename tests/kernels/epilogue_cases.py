"""Small calls of every operator that takes an epilogue, drawn at random, and what an epilogue makes of floats."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from subbyte.kernels import binary_conv2d as of_binary_conv2d
from subbyte.kernels import binary_linear as of_binary_linear
from subbyte.kernels import convolution, depthwise, float_convolution, float_linear, linear
from subbyte.kernels.binary_conv2d import binary_conv2d
from subbyte.kernels.binary_linear import binary_linear
from subbyte.kernels.binary_weight import BinaryWeight, Levels
from subbyte.kernels.convolution import ConvolutionWeight, Window, bias_by_panel, conv2d_codes
from subbyte.kernels.depthwise import DepthwiseWeight, depthwise_conv2d_codes
from subbyte.kernels.epilogue import Codes, Epilogue, Floats, Signs
from subbyte.kernels.float_convolution import FloatConvolutionWeight, conv2d_float
from subbyte.kernels.float_linear import FloatLinearWeight, linear_float
from subbyte.kernels.linear import linear_codes
from subbyte.kernels.linear_weight import LinearWeight

Call = Callable[[Tensor, Epilogue | None], Tensor]

SIGNS = Levels(-1, 1, 2, False)
# Of each operator, what runs it in PyTorch functions.
IN_TORCH: dict[str, Callable[..., Tensor]] = {
    "linear_codes": linear._linear_codes,
    "linear_float": float_linear._linear_float,
    "conv2d_codes": convolution._conv2d_codes,
    "conv2d_float": float_convolution._conv2d_float,
    "depthwise_conv2d_codes": depthwise._depthwise_conv2d_codes,
    "binary_conv2d": of_binary_conv2d._binary_conv2d,
    "binary_linear": of_binary_linear._binary_linear,
}
OPERATORS = list(IN_TORCH)


def drawn(
    operator: str, seed: int = 0, *, channels_last: bool = False, batch: int | None = None
) -> tuple[Tensor, Call]:
    """x, and a call of the operator on it."""
    random = torch.Generator().manual_seed(seed)

    def some(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=random))

    def codes(*shape: int, bits: int) -> Tensor:
        return torch.randint(0, 1 << bits, shape, generator=random, dtype=torch.uint8)

    batch = some(1, 7) if batch is None else batch
    bits, outputs, inputs = some(1, 8), some(1, 90), some(1, 70)
    scale, zero = torch.rand(outputs, 1, generator=random) + 0.1, torch.full((outputs, 1), 1, dtype=torch.int32)
    x_codes = (torch.tensor([0.05]), torch.tensor([some(0, 255)], dtype=torch.int32))
    bias = torch.randn(outputs, generator=random)
    in_panels = torch.nn.functional.pad(bias, (0, -outputs % 16))
    x = torch.randn(batch * some(1, 30), inputs, generator=random) * 3
    if operator == "linear_codes":
        weight = LinearWeight.of(codes(outputs, inputs, bits=bits), scale, zero, bits, inputs)
        return x, lambda x, epilogue: linear_codes(x, weight, in_panels, *x_codes, 0, 255, epilogue)
    if operator == "linear_float":
        floats = FloatLinearWeight.of(codes(outputs, inputs, bits=bits), scale, zero, bits, inputs)
        return x, lambda x, epilogue: linear_float(x, floats, in_panels, epilogue)
    values = codes(outputs, inputs, bits=1).to(torch.int8) * 2 - 1
    if operator == "binary_linear":
        signs = BinaryWeight.of(values, scale[:, 0])
        by_panel = signs.in_panels(bias)
        return x, lambda x, epilogue: binary_linear(x, signs, by_panel, SIGNS, *no_zero(x_codes), epilogue)
    window, groups, per_group = Window((3, 2), (1, 2), (1, 0)), some(1, 3), some(1, 40)
    channels, outputs = some(1, 9), per_group * groups
    scale, bias = torch.rand(outputs, generator=random) + 0.1, torch.randn(outputs, generator=random)
    if operator == "depthwise_conv2d_codes":
        channels, groups = 1, outputs
    x = torch.randn(batch, channels * groups, some(2, 12), some(2, 24), generator=random) * 3
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    zeros, shape = torch.full((outputs,), 1, dtype=torch.int32), (outputs, channels, 3, 2)
    if operator == "conv2d_codes":
        kernel, panels = (
            ConvolutionWeight.of(codes(*shape, bits=bits), scale, zeros, bits, groups),
            bias_by_panel(bias, groups),
        )
        return x, lambda x, epilogue: conv2d_codes(x, kernel, panels, *x_codes, (0, 255), window, epilogue)
    if operator == "conv2d_float":
        on_floats = FloatConvolutionWeight.of(codes(*shape, bits=bits), scale, zeros, bits, groups)
        of_panels = bias_by_panel(bias, groups)
        return x, lambda x, epilogue: conv2d_float(x, on_floats, of_panels, window, epilogue)
    if operator == "depthwise_conv2d_codes":
        taps = DepthwiseWeight.of(codes(*shape, bits=bits), scale, zeros, bits)
        return x, lambda x, epilogue: depthwise_conv2d_codes(x, taps, bias, *x_codes, (0, 255), window, epilogue)
    of_signs = BinaryWeight.of(codes(*shape, bits=1).to(torch.int8) * 2 - 1, scale, groups)
    filled = of_signs.in_panels(bias)
    return x, lambda x, epilogue: binary_conv2d(x, of_signs, filled, SIGNS, *no_zero(x_codes), window, epilogue)


def no_zero(parameters: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Of a table of levels: a scale alone."""
    return parameters[0], torch.zeros_like(parameters[1])


def outputs(scale: float = 0.7) -> list[Floats | Codes | Signs]:
    """One of each kind."""

    def codes(zero_point: int, low: int, high: int, dtype: torch.dtype) -> Codes:
        return Codes(torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32), low, high, dtype)

    floats = [Floats(), Floats(torch.bfloat16)]
    return [
        *floats,
        codes(3, 0, 15, torch.uint8),
        codes(-5, -128, 127, torch.int8),
        codes(0, 0, 1, torch.uint8),
        Signs(),
    ]


def expected(y: Tensor, epilogue: Epilogue) -> Any:
    """The formula, on fp32 in NumPy and on int64."""
    with np.errstate(all="ignore"):  # infinities less infinities
        values = y.numpy() if epilogue.residual is None else y.numpy() + epilogue.residual.numpy()
    low, high, output = np.float32(epilogue.low), np.float32(epilogue.high), epilogue.output
    values = np.where(values < low, low, values)
    values = np.where(values > high, high, values)
    if isinstance(output, Signs):
        return torch.from_numpy(np.packbits(np.moveaxis(values, 1, -1) >= 0, -1, "little"))
    if isinstance(output, Floats):
        return torch.from_numpy(values).to(output.dtype)
    zero = int(output.zero_point)
    # A step past every code is as good as any: int64 has none for the largest floats.
    steps = np.clip(np.rint(values / output.scale.numpy()), -1000, 1000).astype(np.int64)
    return torch.from_numpy(np.clip(steps + zero, output.low, output.high)).to(output.dtype)
