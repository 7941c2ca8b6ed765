"""Where a weight is held besides its op: under a second name, or in a plain attribute of another module."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from subbyte.adaptor.pytorch.modules import handler_of

# What nn.Module itself keeps beside its parameters, buffers and modules: hooks and flags.
MODULE_OWN = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Holder:
    """An attribute of a module that is, or has in it, the weight of an op.

    Args:
        module: is no op of its own; what it computes with the weight, its code says.
        name: of the attribute.
        weights: the `id`s of the parameters it holds.
    """

    module: nn.Module
    name: str
    weights: frozenset[int]

    def exchange(self, others: Mapping[int, Any]) -> None:
        """Put others in the place of the parameters, by `id`."""
        value = getattr(self.module, self.name)
        delattr(self.module, self.name)
        setattr(self.module, self.name, tree_map(lambda leaf: others.get(id(leaf), leaf), value))


def other_holders(model: nn.Module, weights: Mapping[int, Any]) -> list[Holder]:
    """Those that hold any of these parameters, given by `id`, and are no op that the library knows."""
    return [
        Holder(module, name, frozenset(held))
        for module in model.modules()
        if handler_of(module) is None
        for name, value in _attributes(module)
        if (held := {id(leaf) for leaf in tree_leaves(value)} & weights.keys())
    ]


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from module._parameters.items()
    yield from ((name, value) for name, value in vars(module).items() if name not in MODULE_OWN)
