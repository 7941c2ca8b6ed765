"""Ops that a capability runs as one: what follows inside a fusion is no op of its own."""

from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_TYPES, Activation
from subbyte.adaptor.pytorch.graph import Graph, Op
from subbyte.adaptor.pytorch.modules.activation import ActivationHandler
from subbyte.adaptor.pytorch.modules.registry import registered_modules
from subbyte.adaptor.pytorch.swap import float_class

Fusions = Iterable[tuple[str, ...]]


def fuse(graph: Graph, model: nn.Module, fusions: Fusions) -> None:
    """Keep of each op's BatchNorm, and take out of the activations, what a fusion says.

    A BatchNorm outside every fusion runs by itself after its op. An activation inside one is computed on the op's
    result, with no quantizer between.

    Args:
        graph: as recorded; changed.
        model: that was recorded.
        fusions: sequences of op types, as in `(Conv2d, BatchNorm2d, ReLU)`.
    """
    chains = [tuple(fusion) for fusion in fusions]
    for name, op in graph.ops.items():
        if op.norm and not _begins(chains, _types(op, model)):
            graph.ops[name] = replace(op, norm="")
    makers = {maker: op for op in graph for maker in (op.name, op.norm) if maker}
    fused: dict[str, frozenset[str]] = {}
    for name, op in graph.ops.items():
        if op.type in _activation_types() and op.calls:
            before = [makers.get(call.producers[0] or "") for call in op.calls]
            if all(maker is not None and _begins(chains, (*_types(maker, model), op.type)) for maker in before):
                graph.ops[name] = replace(op, fused=True)
                fused[name] = op.consumers
    for name, op in graph.ops.items():  # what reads a fused activation reads the op that it is part of
        read_through = frozenset().union(*(fused.get(consumer, {consumer}) for consumer in op.consumers))
        graph.ops[name] = replace(graph.ops[name], consumers=read_through)


def _types(op: Op, model: nn.Module) -> tuple[str, ...]:
    norm = (float_class(model.get_submodule(op.norm)).__name__,) if op.norm else ()
    return (op.type, *norm)


def _begins(chains: Iterable[tuple[str, ...]], types: tuple[str, ...]) -> bool:
    return any(chain[: len(types)] == types for chain in chains)


def _activation_types() -> set[str]:
    modules = {handler.op_type for handler in registered_modules().values() if isinstance(handler, ActivationHandler)}
    return modules | {name for name, op in FUNCTIONAL_TYPES.items() if isinstance(op, Activation)}
