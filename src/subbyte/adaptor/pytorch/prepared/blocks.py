"""The blocks of a network: the parts that are reconstructed one after another."""

from collections.abc import Iterator, Set

from torch import nn

LARGEST = 8  # weighted ops of a block; a transformer's layer has six or seven

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def find_blocks(model: nn.Module, ops: Set[str]) -> list[str]:
    """The names of disjoint modules that together hold all ops.

    A block is the largest module that holds at most `LARGEST` of them and is no list of other composite modules: a
    residual block, a transformer's layer, a row of convolutions; or an op that stands alone.

    Args:
        model: with the ops.
        ops: names of weighted modules.
    """
    return list(_blocks(model, "", ops))


def _blocks(module: nn.Module, name: str, ops: Set[str]) -> Iterator[str]:
    prefix = f"{name}." if name else ""
    held = {op for op in ops if op.startswith(prefix)} - {name}
    if name in ops or (name and held and _is_block(module, prefix, held)):
        yield name
        return
    if held:
        for child_name, child in module.named_children():
            yield from _blocks(child, prefix + child_name, ops)


def _is_block(module: nn.Module, prefix: str, held: set[str]) -> bool:
    if len(held) > LARGEST or isinstance(module, nn.ModuleList | nn.ModuleDict):
        return False
    parts = {op.removeprefix(prefix).partition(".") for op in held}
    return not isinstance(module, _CONTAINERS) or not any(rest for _, _, rest in parts)
