"""The weight of a linear layer as the kernels take it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.panels import by_panel, from_panels, one_or_by_panel, table_of, to_panels


@dataclass(frozen=True)
class LinearWeight:
    """A weight laid out in panels.

    Args:
        packed: uint8, one axis: the codes, in the order of `panels`.
        scale: fp32 [panels, groups, 16].
        zero_point: int32, the same shape, or [1] where all are equal; in the domain of the values.
        sums: int32 [panels, groups, 16]: of the values.
        values: uint8 [16]: what a code stands for; or empty: itself.
        bits: of a code.
        outputs, inputs: the weight's shape.
        group_size: inputs that share a scale.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    sums: Tensor
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
    ) -> "LinearWeight":
        """Lay a weight out.

        Args:
            codes: uint8 [outputs, inputs], unsigned.
            scale: fp32 [outputs, groups].
            zero_point: int32 [outputs, groups], in the domain of the values.
            bits: of a code.
            group_size: inputs that share a scale; the last group may be shorter.
            values: uint8, what each code stands for, for codes of at most 4 bits; None: the code itself.

        Raises:
            KernelError: the shapes do not fit each other, or a code takes more bits.
        """
        outputs, inputs = codes.shape
        sizes = group_sizes(inputs, group_size)
        if scale.shape != (outputs, len(sizes)) or zero_point.shape != (outputs, len(sizes)):
            raise KernelError(f"a weight of shape {tuple(codes.shape)} takes scales of shape {(outputs, len(sizes))}")
        packed, table = to_panels(codes, bits, sizes), table_of(values, bits)
        numbers = table[codes.int()] if table.numel() else codes
        filled = torch.nn.functional.pad(numbers, (0, len(sizes) * group_size - inputs))
        sums = filled.view(outputs, len(sizes), group_size).sum(2, dtype=torch.int32)
        parts = (by_panel(scale.float()), one_or_by_panel(zero_point), by_panel(sums), table)
        return cls(packed, *parts, bits, outputs, inputs, group_size)

    def codes(self) -> Tensor:
        """The codes: uint8 [outputs, inputs]."""
        return from_panels(self.packed, self.bits, self.outputs, group_sizes(self.inputs, self.group_size))


def group_sizes(inputs: int, group_size: int) -> list[int]:
    """Inputs of each group; the last may be shorter."""
    return [min(group_size, inputs - first) for first in range(0, inputs, group_size)]
