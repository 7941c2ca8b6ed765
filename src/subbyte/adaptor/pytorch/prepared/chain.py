"""Blocks that follow one another directly: what one gives is what the next is given, with nothing between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.prepared.capture import SIMPLE, Call
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.adaptor.pytorch.unchanged import unchanged


@dataclass(frozen=True)
class Link:
    """How the arguments of a block come from a call of the block before.

    Args:
        before: the name of that block.
        sources: for each leaf of (args, kwargs) the place of the same object in the call before, or None for what that
            block gave.
        structure: of (args, kwargs).
    """

    before: str
    sources: tuple[int | None, ...]
    structure: Any

    def follow(self, call: Call, result: Tensor) -> Call:
        """The call that follows `call`, whose block gave `result`; its own output is not known yet."""
        given, _ = tree_flatten((call.args, dict(call.kwargs)))
        leaves = [result if source is None else given[source] for source in self.sources]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return Call(args, kwargs, None, place=call.place)


@dataclass
class _Seen:
    leaves: list[Any]
    structure: Any
    calls: int = 1
    output: Any = None
    version: int = -1


def find_links(model: nn.Module, blocks: Sequence[str], batch: Batch) -> Mapping[str, Link]:
    """The links between blocks, by the name of the later one, as one forward shows them.

    Args:
        model: left as it was.
        blocks: in the order they run.
        batch: of one forward.
    """
    seen: dict[str, _Seen] = {}
    links: dict[str, Link] = {}

    def enter(name: str, args: Any, kwargs: Any) -> None:
        if name in seen:
            seen[name].calls += 1
            return
        leaves, structure = tree_flatten((args, dict(kwargs)))
        seen[name] = _Seen(leaves, structure)
        index = blocks.index(name)
        before = seen.get(blocks[index - 1]) if index else None
        sources = None if before is None else _sources(leaves, before)
        if sources is not None:
            links[name] = Link(blocks[index - 1], sources, structure)

    def leave(name: str, output: Any) -> None:
        results = tensors_in(output)
        seen[name].output = output if isinstance(output, Tensor) else next(iter(results), None)
        seen[name].version = -1 if seen[name].output is None else seen[name].output._version

    handles = []
    for name in blocks:
        module = model.get_submodule(name)
        handles.append(
            module.register_forward_pre_hook(
                lambda module, args, kwargs, name=name: enter(name, args, kwargs), with_kwargs=True
            )
        )
        handles.append(module.register_forward_hook(lambda module, args, output, name=name: leave(name, output)))
    try:
        with unchanged(model):
            batch.copied().run(model)
    finally:
        for handle in handles:
            handle.remove()
    once = {name for name, each in seen.items() if each.calls == 1}
    return {name: link for name, link in links.items() if {name, link.before} <= once}


def _sources(leaves: list[Any], before: _Seen) -> tuple[int | None, ...] | None:
    """Where each leaf comes from; None where one comes from elsewhere, or was written to on the way."""
    sources: list[int | None] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf is before.output and leaf._version == before.version:
            sources.append(None)
            continue
        same = [place for place, other in enumerate(before.leaves) if other is leaf]
        # An object that is neither may have been written to by the block before: a cache.
        if not same or leaf is before.output or not isinstance(leaf, (Tensor, *SIMPLE)):
            return None
        sources.append(same[0])
    return tuple(sources) if None in sources else None
