"""Giving a parameter other values while what shares its memory keeps the old."""

import torch
from torch import Tensor


def give_values(parameter: Tensor, values: Tensor) -> None:
    """Put other memory, not other values in it, under a parameter: a reference model may hold the old.

    Its version goes up, as the new may lie where something freed lay: an address alone tells of no change.

    Args:
        parameter: keeps its dtype.
        values: of its shape.
    """
    parameter.data = values.to(parameter.dtype).contiguous()
    torch.autograd.graph.increment_version(parameter)
