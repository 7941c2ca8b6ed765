"""linear_codes: a linear layer on packed weight codes and quantized rows, exact in integers.

`y[m, n] = sum over groups g of float(t) * (x_scale * w_scale[n, g]) (+ bias[n])`, where
`t = sum over k in g of (x[m, k] - x_zero)(w[n, k] - w_zero[n, g])` is exact, groups are added in order, and every
product and sum of floats is rounded by itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.operator import define
from subbyte.kernels.packing import pack_codes, unpack_codes

PANEL = 16  # outputs side by side
STEP = 4  # neighbouring inputs of each


@dataclass(frozen=True)
class LinearWeight:
    """A weight as `linear_codes` takes it: panels of codes, and what the sums need.

    Args:
        packed: uint8, one axis: for each panel of 16 outputs, for each step of 4 inputs, 64 codes of `bits` bits.
        scale, zero_point, sums: [panels, groups, 16]; fp32, int32, int32.
        bits: of a code.
        outputs, inputs: the weight's shape.
        group_size: inputs that share a scale.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    sums: Tensor
    bits: int
    outputs: int
    inputs: int
    group_size: int

    @classmethod
    def of(cls, codes: Tensor, scale: Tensor, zero_point: Tensor, bits: int, group_size: int) -> "LinearWeight":
        """Lay a weight out in panels.

        Args:
            codes: uint8 [outputs, inputs], unsigned.
            scale: fp32 [outputs, groups].
            zero_point: int32 [outputs, groups], in the domain of `codes`.
            bits: of a code.
            group_size: inputs that share a scale; the last group may be shorter.

        Raises:
            KernelError: the shapes do not fit each other, or a code takes more bits.
        """
        outputs, inputs = codes.shape
        groups = -(-inputs // group_size)
        if scale.shape != (outputs, groups) or zero_point.shape != (outputs, groups):
            raise KernelError(f"a weight of shape {tuple(codes.shape)} takes scales of shape {(outputs, groups)}")
        if codes.numel() and int(codes.max()) >> bits:
            raise KernelError(f"code {int(codes.max())} takes more than {bits} bits")
        pieces = [_filled(piece, STEP) for piece in codes.split(group_size, 1)]
        sums = torch.stack([piece.sum(1, dtype=torch.int32) for piece in pieces], 1)
        whole = torch.cat(pieces, 1)
        rows = torch.nn.functional.pad(whole, (0, 0, 0, -outputs % PANEL))
        panels = rows.view(-1, PANEL, whole.shape[1] // STEP, STEP).transpose(1, 2)
        scale, zero_point, sums = (_in_panels(x) for x in (scale.float(), zero_point.int(), sums))
        return cls(pack_codes(panels, bits), scale, zero_point, sums, bits, outputs, inputs, group_size)

    def codes(self) -> Tensor:
        """The codes: uint8 [outputs, inputs]."""
        return _codes(self.packed, self.bits, self.outputs, self.inputs, self.group_size)


def _filled(x: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[1] % multiple))


def _in_panels(x: Tensor) -> Tensor:
    """[outputs, groups] as [panels, groups, 16]."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % PANEL))
    return padded.view(-1, PANEL, x.shape[1]).transpose(1, 2).contiguous()


def _linear_codes(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    weight_sums: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    x_low: int,
    x_high: int,
    bits: int,
    outputs: int,
    group_size: int,
) -> Tensor:
    _check_layer(x, weight_scale, outputs, group_size)
    _check_codes_of_x(x, x_scale, x_zero_point, x_low, x_high)
    zero = x_zero_point[:, None].double()
    # A NaN has no code; it stays one, and makes its row NaN.
    grid = torch.clamp(torch.round(x / x_scale[:, None]) + zero, x_low, x_high) - zero
    codes = _codes(weight, bits, outputs, x.shape[1], group_size).double()
    y = x.new_zeros(())
    for group, (piece, columns) in enumerate(zip(grid.split(group_size, 1), codes.split(group_size, 1), strict=True)):
        w_zero = weight_zero_point[:, group].reshape(-1)[:outputs].double()
        scale = x_scale[:, None] * weight_scale[:, group].reshape(-1)[:outputs]
        term = (piece @ (columns - w_zero[:, None]).T).float() * scale
        y = term if group == 0 else y + term
    return y + bias[:outputs] if bias.numel() else y


def _codes(packed: Tensor, bits: int, outputs: int, inputs: int, group_size: int) -> Tensor:
    """The codes of a weight in panels: uint8 [outputs, inputs]."""
    sizes = [min(group_size, inputs - first) for first in range(0, inputs, group_size)]
    filled = [-(-size // STEP) * STEP for size in sizes]
    rows = -(-outputs // PANEL) * PANEL
    panels = unpack_codes(packed, bits, rows * sum(filled), False).view(-1, sum(filled) // STEP, PANEL, STEP)
    pieces = panels.transpose(1, 2).reshape(rows, -1)[:outputs].split(filled, 1)
    return torch.cat([piece[:, :size] for piece, size in zip(pieces, sizes, strict=True)], 1)


def _check_layer(x: Tensor, weight_scale: Tensor, outputs: int, group_size: int) -> None:
    if x.ndim != 2 or x.dtype != torch.float32:
        raise KernelError("linear_codes: x must be float32, of rows and columns")
    if x.shape[1] == 0 or outputs <= 0:
        raise KernelError("linear_codes: a layer has inputs and outputs")
    if group_size <= 0 or weight_scale.shape[:2] != (-(-outputs // PANEL), -(-x.shape[1] // group_size)):
        raise KernelError("linear_codes: the weight's scale does not fit x")


def _check_codes_of_x(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int) -> None:
    if scale.shape not in ((1,), x.shape[:1]) or zero_point.shape != scale.shape:
        raise KernelError("linear_codes: the scale and the zero point of x are one, or one for each row")
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise KernelError("linear_codes: the scale of x is no positive number")
    if not (-128 <= low < high <= 255 and high - low <= 255):
        raise KernelError("linear_codes: codes of x take 8 bits")
    if not bool(((zero_point >= low) & (zero_point <= high)).all()):
        raise KernelError("linear_codes: the zero point of x is no code")


def linear_codes(
    x: Tensor, weight: LinearWeight, bias: Tensor, x_scale: Tensor, x_zero_point: Tensor, x_low: int, x_high: int
) -> Tensor:
    """Quantize the rows of x and multiply them with a weight.

    Args:
        x: fp32 [rows, inputs].
        weight: laid out.
        bias: fp32 [outputs filled up to whole panels], or empty.
        x_scale, x_zero_point: fp32 and int32, [1] or [rows].
        x_low, x_high: the codes of x.

    Returns:
        fp32 [rows, outputs].

    Raises:
        RuntimeError: something does not fit.
    """
    y: Tensor = torch.ops.subbyte.linear_codes(
        x,
        weight.packed,
        weight.scale,
        weight.zero_point,
        weight.sums,
        bias,
        x_scale,
        x_zero_point,
        x_low,
        x_high,
        weight.bits,
        weight.outputs,
        weight.group_size,
    )
    return y


define(
    "linear_codes(Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, "
    "Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, int outputs, "
    "int group_size) -> Tensor",
    _linear_codes,
    lambda x, *arguments: x.new_empty(x.shape[0], arguments[-2]),
)
