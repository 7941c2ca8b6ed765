"""The tensors in what a function takes and gives."""

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def tensors_in(tree: Any) -> list[Tensor]:
    """Tensors of any nesting of tuples, lists, dicts, dataclasses and what else PyTorch's pytree knows, in order."""
    return [leaf for leaf in leaves_in(tree) if isinstance(leaf, Tensor)]


def leaves_in(tree: Any) -> list[Any]:
    """All leaves of such a nesting; a dataclass, which pytree takes for a leaf, is opened."""
    found: list[Any] = []
    opened: set[int] = set()  # one may hold itself
    pending = tree_leaves(tree)[::-1]
    while pending:
        leaf = pending.pop()
        if not is_dataclass(leaf) or isinstance(leaf, type | Tensor):
            found.append(leaf)
        elif id(leaf) not in opened:
            opened.add(id(leaf))
            values = [getattr(leaf, field.name, None) for field in fields(leaf)]
            pending.extend(tree_leaves(values)[::-1])
    return found
