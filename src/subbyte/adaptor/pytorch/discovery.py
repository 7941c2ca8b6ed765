"""Discovery: one float forward that records ops, who makes and who reads each value, first and last layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.call_site import call_site
from subbyte.adaptor.pytorch.composites import COMPOSITES
from subbyte.adaptor.pytorch.consumers import mark_consumers, passes_codes
from subbyte.adaptor.pytorch.functional_op import written
from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_OPS, FUNCTIONAL_TYPES
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.products import mark_products
from subbyte.adaptor.pytorch.swap import positional
from subbyte.adaptor.pytorch.tensors import leaves_in, tensors_in
from subbyte.adaptor.pytorch.trace import (
    Node,
    Trace,
    Value,
    memory_of,
    module_op,
    op_weights,
    quantizable_modules,
    takes_norm,
    with_held_weights,
)
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.spec import Position


class _DiscoveryMode(TorchFunctionMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        trace = self.trace
        if trace.in_leaf:
            return function(*args, **kwargs)
        if function in COMPOSITES:
            with self:
                return COMPOSITES[function](*args, **kwargs)
        leaves = leaves_in((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        target = written(function, args, kwargs)
        trace.refuse_writing(target, function)
        output = function(*args, **kwargs)
        outputs = tensors_in(output)
        if isinstance(target, Tensor):
            outputs.append(target)
        if not outputs:
            return output
        trace.note_unfollowed(tensors)
        sources = trace.known(tensors)
        trace.note_weights_read(leaves)
        op = FUNCTIONAL_OPS.get(function)
        name, weighted = "", False
        if op is not None and op.inputs(args, kwargs):
            name, weighted = trace.record_function(op, function, args, kwargs, output)
        else:
            trace.graph.functions.setdefault(function.__name__, trace.scope)
        key = trace.unique(name or self._place(function.__name__))
        producers = tuple(source.producer for source in sources if source is not None)
        is_product = weighted or (op is not None and op.role == "matmul")
        trace.nodes[key] = Node(
            producers,
            weighted=weighted,
            product=name if is_product else "",
            label=name or f"{function.__name__} in {trace.scope!r}",
            passes_codes=not name and passes_codes(function),
        )
        trace.new_value(key, tensors, outputs, weighted)
        return output

    def _place(self, function_name: str) -> str:
        """A name for what a function that is no op makes: the same in every forward, however control flow goes."""
        return f"{self.trace.scope}.{function_name}@{call_site(function_name)}"


def discover(model: nn.Module, batch: Batch, names: dict[tuple[str, str, str], str] | None = None) -> Graph:
    """Record one float forward of a model; the model is left as it was.

    Args:
        model: float, or prepared and in phase `bypass`.
        batch: the inputs of one forward.
        names: the names of functional ops that earlier recordings gave; extended.

    Returns:
        every op in the order it ran, modules that were not reached last.
    """
    batch = batch.copied()
    handlers = quantizable_modules(model)
    paths = {module: name for name, module in model.named_modules()}
    weights = op_weights(model)
    trace = Trace(
        paths,
        handlers,
        function_names={} if names is None else names,
        parameters={id(parameter): name for name, parameter in model.named_parameters()},
        owners={id(weight): name for weight, name in weights.items()},
        weight_memory={memory_of(weight): name for weight, name in weights.items()},
        graph=with_held_weights(model),
        constants={id(x) for module in paths for x in tensors_in([*vars(module).values()])},
    )
    for index, x in enumerate(tensors_in((batch.args, batch.kwargs))):
        key = f"input{index}"
        trace.nodes[key] = Node(())
        trace.shapes[key] = tuple(x.shape)
        trace.values[x] = Value(key, inputs=frozenset({key}))
    with unchanged(model), _hooks(trace), _DiscoveryMode(trace):
        output = batch.run(model)
    _mark_calls(trace)
    _mark_last(trace, output)
    mark_products(trace, _shown(trace, output))
    mark_consumers(trace, _shown(trace, output))
    _mark_norms(trace, model, output)
    for module, handler in trace.handlers.items():
        name = trace.names[module]
        trace.graph.ops.setdefault(name, module_op(module, name, handler))
    return trace.graph


@contextmanager
def _hooks(trace: Trace) -> Iterator[None]:
    def enter(module: nn.Module, args: Any) -> None:
        trace.stack.append(module)

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        trace.stack.pop()
        failed = output is None  # it raised, and a caller may catch that
        if trace.is_leaf(module) and not trace.in_leaf and not failed:
            trace.record_module(module, positional(module, args, kwargs), output)

    # Inside of the model's own hooks: what those compute is the caller's code.
    handles = [module.register_forward_pre_hook(enter) for module in trace.names]
    options = {"with_kwargs": True, "prepend": True, "always_call": True}
    handles += [module.register_forward_hook(leave, **options) for module in trace.names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mark_calls(trace: Trace) -> None:
    """What is known once all has run: who is first, what multiplies how often, which values are to be quantized."""
    ops = trace.graph.ops
    with_weight = {node.op or node.product for node in trace.nodes.values() if node.weighted}
    for name, op in ops.items():
        calls = op.calls
        if op.kind == "function":
            rule = all if FUNCTIONAL_TYPES[op.type].needs_all else any
            occurrences = {call.site: trace.operands[name, call.site] for call in calls}
            calls = tuple(
                replace(call, quantizable=any(rule(map(trace.is_signal, x)) for x in occurrences[call.site]))
                for call in calls
            )
        first = name in with_weight and not trace.entries.isdisjoint(trace.reading.get(name, ()))
        positions: frozenset[Position] = frozenset({"first"} if first else ())
        ops[name] = replace(op, calls=calls, positions=positions, macs=trace.macs[name] // trace.samples)


def _mark_last(trace: Trace, output: Any) -> None:
    """Last: every weighted op whose value reaches the output through no other weighted op."""
    trace.note_unfollowed(tensors_in(output))
    for key in trace.behind(_shown(trace, output)):
        node = trace.nodes[key]
        name = node.op or node.product
        if node.weighted and name in trace.graph.ops:
            op = trace.graph.ops[name]
            trace.graph.ops[name] = replace(op, positions=op.positions | {"last"})


def _mark_norms(trace: Trace, model: nn.Module, output: Any) -> None:
    """A BatchNorm belongs to the op before it where it alone reads that op's value, and each ran once."""
    readers: dict[str, list[str]] = {}
    for key, node in trace.nodes.items():
        for source in node.sources:
            readers.setdefault(source, []).append(key)
    shown = _shown(trace, output)
    ran: dict[str, int] = {}
    for node in trace.nodes.values():
        for name in (node.op, node.norm):
            ran[name] = ran.get(name, 0) + 1
    for node in trace.nodes.values():
        if not node.norm or len(node.sources) != 1 or ran[node.norm] != 1:
            continue
        before = trace.nodes[node.sources[0]]
        alone = len(readers[node.sources[0]]) == 1 and node.sources[0] not in shown
        alone = alone and before.op not in trace.graph.read_by_code
        if before.op and alone and ran[before.op] == 1 and _fits(model, before.op, node.norm, trace):
            trace.graph.ops[before.op] = replace(trace.graph.ops[before.op], norm=node.norm)


def _fits(model: nn.Module, op: str, norm: str, trace: Trace) -> bool:
    module = model.get_submodule(op)
    return takes_norm(trace.handlers[module], module, model.get_submodule(norm))


def _shown(trace: Trace, output: Any) -> set[str]:
    """The nodes that made what the model returns."""
    return {value.producer for value in trace.known(tensors_in(output)) if value is not None}
