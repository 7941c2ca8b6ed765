"""Tensors of a state_dict that are the same memory, stored once."""

from typing import Any

import torch
from torch import Tensor


def without_aliases(state_dict: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors that are the same memory are stored once; the other names point there.

    What is only a part of some memory, or overlaps with another, is stored as a copy.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[int, Any, Any], str] = {}
    stored: set[int] = set()
    for name, tensor in state_dict.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in first and tensors[first[key]].dtype == tensor.dtype:
            aliases[name] = first[key]
        else:
            first[key] = name
            memory = tensor.untyped_storage()
            is_alone = memory.nbytes() == tensor.nbytes and memory.data_ptr() not in stored
            stored.add(memory.data_ptr())
            tensors[name] = tensor if is_alone else tensor.clone(memory_format=torch.contiguous_format)
    return tensors, aliases
