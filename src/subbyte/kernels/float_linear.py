"""linear_float: a linear layer on packed weight codes and float inputs.

`y[m, n] = sum over groups g of scale[n, g] * (sum over k in g of x[m, k] * (values[code[n, k]] - zero_point[n, g]))
(+ bias[n])`, in fp32. The native kernels add inputs in order by fused multiply-adds, so that every instruction set
gives the same. Against exact arithmetic an output is off by at most `(K + groups + 2) * 2^-24 * sum |x w|` (K inputs,
the bias one of the `|x w|`).

x in bf16 gives y in bf16: the same, rounded. Where the CPU multiplies pairs of bf16 (AVX-512 BF16) and `value -
zero_point` is exact in it (whole numbers up to 256 in size; without zero points any entries exact in bf16), it adds two
products at a time in its own way and takes what is below 2^-126 for 0. The bound, before y is rounded, grows by
`2^-125 * sum of max(|w|, |scale|) + 2^-126`, and the bits are that CPU's; a row's do not depend on the rows beside it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.checks import check_packed, check_scale_of_weight
from subbyte.kernels.epilogue import Epilogue, define_fused
from subbyte.kernels.gpu import by_triton
from subbyte.kernels.linear_weight import group_sizes
from subbyte.kernels.operator import define
from subbyte.kernels.panels import PANEL, by_panel, from_panels, panel_bytes, to_panels

LARGEST_TABLE_BITS = 4
CPU_DTYPES = (torch.float32, torch.bfloat16)
GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class FloatLinearWeight:
    """A weight laid out in panels.

    Args:
        packed: uint8, one axis: the codes, in the order of `panels`.
        scale: fp32 [panels, groups, 16].
        zero_point: fp32, the same shape, what is taken from the values; or empty: nothing.
        values: fp32 [16] for codes of at most 4 bits, entry i that of code i % 2^bits; for wider codes, which stand for
            themselves, empty.
        bits: of a code.
        outputs, inputs: the weight's shape.
        group_size: inputs that share a scale.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    values: Tensor
    bits: int
    outputs: int
    inputs: int
    group_size: int

    @classmethod
    def of(
        cls,
        codes: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        bits: int,
        group_size: int,
        values: Tensor | None = None,
    ) -> "FloatLinearWeight":
        """Lay a weight out.

        Args:
            codes: uint8 [outputs, inputs], unsigned.
            scale: fp32 [outputs, groups].
            zero_point: [outputs, groups], in the domain of the values.
            bits: of a code.
            group_size: inputs that share a scale; the last group may be shorter.
            values: fp32, what each code stands for, for codes of at most 4 bits; None: the code itself.

        Raises:
            KernelError: the shapes do not fit each other, or a code takes more bits.
        """
        outputs, inputs = codes.shape
        sizes = group_sizes(inputs, group_size)
        if scale.shape != (outputs, len(sizes)) or zero_point.shape != (outputs, len(sizes)):
            raise KernelError(f"a weight of shape {tuple(codes.shape)} takes scales of shape {(outputs, len(sizes))}")
        table, has_zeros = float_table(values, zero_point, bits)
        zeros = by_panel(zero_point.float()) if has_zeros else torch.empty(0, device=codes.device)
        packed = to_panels(codes, bits, sizes)
        return cls(packed, by_panel(scale.float()), zeros, table, bits, outputs, inputs, group_size)

    def codes(self) -> Tensor:
        """The codes: uint8 [outputs, inputs]."""
        return from_panels(self.packed, self.bits, self.outputs, group_sizes(self.inputs, self.group_size))


def float_table(values: Tensor | None, zero_point: Tensor, bits: int) -> tuple[Tensor, bool]:
    """What codes stand for, as the kernels on floats take it, and whether zero points are still to be taken from it.

    Args:
        values: what each code stands for, for codes of at most 4 bits; None: the code itself.
        zero_point: all of them, in the domain of the values.
        bits: of a code.

    Returns:
        fp32 [16], or empty for wider codes.

    Raises:
        KernelError: a table for codes of more than 4 bits.
    """
    if values is not None and (bits > LARGEST_TABLE_BITS or len(values) > 1 << bits):
        raise KernelError("a table of values is for codes of at most 4 bits")
    if bits > LARGEST_TABLE_BITS:
        return torch.empty(0, device=zero_point.device), True
    entries = torch.arange(1 << bits) if values is None else values
    entries = entries.to(zero_point.device, torch.float32)
    one_zero = zero_point.reshape(-1)[0].float()
    has_zeros = not bool((zero_point == one_zero).all())
    entries = entries if has_zeros else entries - one_zero
    return torch.nn.functional.pad(entries, (0, (1 << bits) - len(entries))).repeat(16 >> bits), has_zeros


def linear_float(x: Tensor, weight: FloatLinearWeight, bias: Tensor, epilogue: Epilogue | None = None) -> Tensor:
    """Multiply rows of floats with a weight.

    Args:
        x: fp32 or bf16 [rows, inputs]; on a GPU fp16 too.
        weight: laid out.
        bias: fp32 [outputs filled up to whole panels], or empty.
        epilogue: what is done with the results, which are then fp32 (of x in bf16, rounded to it before).

    Returns:
        [rows, outputs], of the dtype of x, or what the epilogue makes of it.

    Raises:
        RuntimeError: something does not fit.
    """
    parts = (weight.packed, weight.scale, weight.zero_point, weight.values, bias)
    numbers = (weight.bits, weight.outputs, weight.inputs, weight.group_size)
    y: Tensor = (
        torch.ops.subbyte.linear_float(x, *parts, *numbers)
        if epilogue is None
        else torch.ops.subbyte.linear_float_fused(x, *parts, *numbers, *epilogue.arguments(x.device))
    )
    return y


def _linear_float(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    values: Tensor,
    bias: Tensor,
    bits: int,
    outputs: int,
    inputs: int,
    group_size: int,
) -> Tensor:
    arguments = FloatLinearWeight(weight, weight_scale, weight_zero_point, values, bits, outputs, inputs, group_size)
    check_float_linear(x, arguments, bias, dtypes_on(x.device))
    sizes = group_sizes(inputs, group_size)
    check_scale_of_weight(weight_scale)
    codes = from_panels(weight, bits, outputs, sizes)
    numbers = values[codes.int()] if values.numel() else codes.float()
    by_output = (_by_output(part, outputs, len(sizes)) for part in (weight_scale, weight_zero_point))
    scale, zero_point = (part.repeat_interleave(group_size, 1)[:, :inputs] for part in by_output)
    real_bias = bias[:outputs] if bias.numel() else None
    return torch.nn.functional.linear(x.float(), (numbers - zero_point) * scale, real_bias).to(x.dtype)


def dtypes_on(device: torch.device) -> tuple[torch.dtype, ...]:
    """What `linear_float` takes for x, and gives: on a GPU a weight is rounded to it before it is multiplied."""
    return GPU_DTYPES if device.type == "cuda" else CPU_DTYPES


def check_float_linear(x: Tensor, weight: FloatLinearWeight, bias: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Refuse what does not fit; `dtypes`: that x may have.

    Raises:
        KernelError: why.
    """
    bits, outputs, inputs = weight.bits, weight.outputs, weight.inputs
    if x.ndim != 2 or x.dtype not in dtypes or x.shape[1] != inputs:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise KernelError(f"x must be {names}, of rows and as many columns as the layer has inputs")
    if inputs <= 0 or outputs <= 0 or weight.group_size <= 0:
        raise KernelError("a layer has inputs, outputs and groups that hold something")
    sizes = group_sizes(inputs, weight.group_size)
    check_packed(weight.packed, bits, panel_bytes(bits, outputs, sizes))
    panels = -(-outputs // PANEL)
    parameters = panels * len(sizes) * PANEL
    if weight.scale.numel() != parameters or weight.zero_point.numel() not in (0, parameters):
        raise KernelError(f"the weight's scale and zero point take {parameters} elements")
    if weight.values.numel() != (16 if bits <= LARGEST_TABLE_BITS else 0) or bias.numel() not in (0, panels * PANEL):
        raise KernelError("the table of values or the bias does not fit")
    floats = (weight.scale, weight.zero_point, weight.values, bias)
    if any(part.dtype != torch.float32 for part in floats):
        raise KernelError("scale, zero point, values and bias must be float32")
    if any(part.device != x.device for part in (weight.packed, *floats)):
        raise KernelError("x, the weight and the bias must be on one device")


def _by_output(x: Tensor, outputs: int, groups: int) -> Tensor:
    """What `by_panel` made, as [outputs, groups]; of nothing, zeros."""
    if x.numel() == 0:
        return x.new_zeros(outputs, groups)
    return x.view(-1, groups, PANEL).transpose(1, 2).reshape(-1, groups)[:outputs]


def _shape(x: Tensor, *arguments: Any) -> Tensor:
    return x.new_empty(x.shape[0], arguments[-3])


_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor values, Tensor bias, int bits, "
    "int outputs, int inputs, int group_size"
)
define(
    f"linear_float({_ARGUMENTS}) -> Tensor", _linear_float, _shape, by_triton("linear", "linear_float", _linear_float)
)
define_fused(
    "linear_float",
    _ARGUMENTS,
    lambda *arguments: _linear_float(*arguments).float(),
    _shape,
    lambda *arguments: torch.ops.subbyte.linear_float(*arguments).float(),
)
