"""Discovery: one float forward that records ops, who makes and who reads each value, first and last layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.call_site import call_site
from subbyte.adaptor.pytorch.composites import COMPOSITES
from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_OPS, FunctionalOp
from subbyte.adaptor.pytorch.graph import Call, Graph, Op
from subbyte.adaptor.pytorch.modules import ModuleHandler, WeightedHandler, handler_of
from subbyte.adaptor.pytorch.swap import float_class, positional

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class _Value:
    """What is known of one tensor.

    Args:
        producer: the node that made it.
        from_input: whether it reads the network's input through no weighted op.
        weighted: whether a weighted op lies behind it.
    """

    producer: str
    from_input: bool
    weighted: bool


@dataclass
class _Node:
    """One recorded call: an op, a norm, or any other torch function."""

    sources: tuple[str, ...]
    op: str = ""
    weighted: bool = False
    norm: str = ""


@dataclass
class _Recorder:
    """Collects while the forward runs."""

    names: dict[nn.Module, str]
    handlers: dict[nn.Module, ModuleHandler]
    graph: Graph = field(default_factory=Graph)
    nodes: dict[str, _Node] = field(default_factory=dict)
    values: Any = field(default_factory=WeakIdKeyDictionary)
    stack: list[nn.Module] = field(default_factory=list)
    function_names: dict[tuple[str, str, str], str] = field(default_factory=dict)
    samples: int = 1

    def is_leaf(self, module: nn.Module) -> bool:
        return module in self.handlers or isinstance(module, NORMS)

    @property
    def in_leaf(self) -> bool:
        return bool(self.stack) and self.is_leaf(self.stack[-1])

    @property
    def scope(self) -> str:
        return self.names.get(self.stack[-1], "") if self.stack else ""

    def known(self, tensors: Any) -> list[_Value | None]:
        return [self.values.get(x) for x in tensors]

    def new_value(self, key: str, sources: list[_Value | None], outputs: Any, weighted: bool) -> None:
        known = [source for source in sources if source is not None]
        value = _Value(
            key,
            from_input=not weighted and any(source.from_input for source in known),
            weighted=weighted or any(source.weighted for source in known),
        )
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self.values[output] = value

    def unique(self, key: str) -> str:
        """A node for each call: a loop calls the same place several times."""
        count, unique = 1, key
        while unique in self.nodes:
            count += 1
            unique = f"{key}#{count}"
        return unique

    def record_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self.names[module]
        tensors = [x for x in tree_leaves(inputs) if isinstance(x, Tensor)]
        sources = self.known(tensors)
        producers = tuple(source.producer for source in sources if source is not None)
        key = self.unique(name)
        handler = self.handlers.get(module)
        if handler is None:
            self.nodes[key] = _Node(producers, norm=name)
            self.new_value(key, sources, output, weighted=False)
            return
        weighted = handler.role == "weighted"
        self.nodes[key] = _Node(producers, name, weighted)
        first = sources[0].producer if sources and sources[0] is not None else None
        reads_input = weighted and any(source is not None and source.from_input for source in sources)
        op = replace(
            module_op(module, name, handler),
            calls=(Call(call_site(), (first,)),),
            macs=handler.macs(module, inputs, output) // max(self.samples, 1) if tensors else 0,
            positions=frozenset({"first"} if reads_input else ()),
        )
        self.graph.merge(Graph({name: op}))
        self.new_value(key, sources, output, weighted)

    def record_function(self, op: FunctionalOp, function: Any, args: Any, kwargs: Any, output: Any) -> str:
        """Record a functional op; returns its node."""
        inputs = op.inputs(args, kwargs)
        site = call_site(function.__name__)
        sources = self.known(inputs)
        name = self._function_name(op.op_type, site)
        producers = tuple(source.producer if source else None for source in sources)
        if op.op_type == "scaled_dot_product_attention":
            producers = (*producers[:2], None, producers[2])
        derived = [source is not None and source.weighted for source in sources]
        quantizable = op.holds_weight or (all(derived) if op.needs_all else any(derived))
        macs = op.macs(inputs, output) // max(self.samples, 1)
        call = Call(site, producers, quantizable)
        self.graph.merge(Graph({name: Op(name, op.op_type, op.role, "function", self.scope, (call,), macs=macs)}))
        self.graph.order.setdefault(self.scope, []).append((op.op_type, site))
        return name

    def _function_name(self, op_type: str, site: str) -> str:
        key = (self.scope, op_type, site)
        if key not in self.function_names:
            earlier = sum(scope == self.scope and kind == op_type for scope, kind, _ in self.function_names)
            prefix = f"{self.scope}." if self.scope else ""
            self.function_names[key] = f"{prefix}{op_type}" + (f"_{earlier}" if earlier else "")
        return self.function_names[key]


class _DiscoveryMode(TorchFunctionMode):
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        if recorder.in_leaf:
            return function(*args, **kwargs)
        if function in COMPOSITES:
            with self:
                return COMPOSITES[function](*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        sources = recorder.known(tensors)
        output = function(*args, **kwargs)
        outputs = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        if _writes(function) and tensors:
            outputs.append(tensors[0])
        if not outputs:
            return output
        op = FUNCTIONAL_OPS.get(function)
        named = ""
        if op is not None and op.inputs(args, kwargs):
            named = recorder.record_function(op, function, args, kwargs, output)
        key = recorder.unique(named or self._place(function.__name__))
        producers = tuple(source.producer for source in sources if source is not None)
        weighted = op is not None and op.holds_weight
        recorder.nodes[key] = _Node(producers, weighted=weighted)
        recorder.new_value(key, sources, outputs, weighted)
        return output

    def _place(self, function_name: str) -> str:
        """A name for what a function that is no op makes: the same in every forward, however control flow goes."""
        return f"{self.recorder.scope}.{function_name}@{call_site(function_name)}"


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
    recorder = _Recorder(
        {module: name for name, module in model.named_modules()},
        quantizable_modules(model),
        function_names={} if names is None else names,
    )
    inputs = [x for x in tree_leaves((batch.args, batch.kwargs)) if isinstance(x, Tensor)]
    recorder.samples = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
    for index, x in enumerate(inputs):
        key = f"input{index}"
        recorder.nodes[key] = _Node(())
        recorder.values[x] = _Value(key, from_input=True, weighted=False)
    with unchanged(model), _hooks(recorder), _DiscoveryMode(recorder):
        output = batch.run(model)
    _mark_last(recorder, output)
    _mark_norms(recorder, model, output)
    for module, handler in recorder.handlers.items():
        name = recorder.names[module]
        recorder.graph.ops.setdefault(name, module_op(module, name, handler))
    return recorder.graph


def quantizable_modules(model: nn.Module) -> dict[nn.Module, ModuleHandler]:
    """The modules of a float or prepared model whose type has a handler, each once."""
    found = {}
    for module in model.modules():
        handler = handler_of(module)
        if handler is not None:
            found[module] = handler
    return found


def module_op(module: nn.Module, name: str, handler: ModuleHandler) -> Op:
    """A module as an op that no forward has reached yet."""
    return Op(name, handler.op_type, handler.role, "module", depthwise=handler.is_depthwise(module))


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Run in eval() without gradients; buffers, modes and random state are put back."""
    modes = {module: module.training for module in model.modules()}
    held = {module: dict(module._buffers) for module in modes}
    values = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    try:
        model.eval()
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        _put_back(held, values)


def _put_back(held: dict[nn.Module, dict[str, Tensor | None]], values: dict[Tensor, Tensor]) -> None:
    """The buffers that modules had, where a forward put others in their place, and what they held."""
    for module, buffers in held.items():
        module._buffers.update({name: buffer for name, buffer in buffers.items() if name in module._buffers})
    with torch.no_grad():
        for buffer, value in values.items():
            if buffer.shape == value.shape:
                buffer.copy_(value)


@contextmanager
def _hooks(recorder: _Recorder) -> Iterator[None]:
    def enter(module: nn.Module, args: Any) -> None:
        recorder.stack.append(module)

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        recorder.stack.pop()
        if recorder.is_leaf(module) and not recorder.in_leaf:
            recorder.record_module(module, positional(module, args, kwargs), output)

    # Inside of the model's own hooks: what those compute is the caller's code.
    handles = [module.register_forward_pre_hook(enter) for module in recorder.names]
    handles += [module.register_forward_hook(leave, with_kwargs=True, prepend=True) for module in recorder.names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mark_last(recorder: _Recorder, output: Any) -> None:
    """Last: every weighted op whose value reaches the output through no other weighted op."""
    pending = [value.producer for value in recorder.known(_tensors(output)) if value is not None]
    seen: set[str] = set()
    while pending:
        key = pending.pop()
        if key in seen:
            continue
        seen.add(key)
        node = recorder.nodes[key]
        if not node.weighted:
            pending.extend(node.sources)
        elif node.op in recorder.graph.ops:
            op = recorder.graph.ops[node.op]
            recorder.graph.ops[node.op] = replace(op, positions=op.positions | {"last"})


def _mark_norms(recorder: _Recorder, model: nn.Module, output: Any) -> None:
    """A BatchNorm belongs to the op before it where it alone reads that op's value, and each ran once."""
    readers: dict[str, list[str]] = {}
    for key, node in recorder.nodes.items():
        for source in node.sources:
            readers.setdefault(source, []).append(key)
    shown = {value.producer for value in recorder.known(_tensors(output)) if value is not None}
    ran: dict[str, int] = {}
    for node in recorder.nodes.values():
        for name in (node.op, node.norm):
            ran[name] = ran.get(name, 0) + 1
    for node in recorder.nodes.values():
        if not node.norm or len(node.sources) != 1 or ran[node.norm] != 1:
            continue
        before = recorder.nodes[node.sources[0]]
        alone = len(readers[node.sources[0]]) == 1 and node.sources[0] not in shown
        if before.op and alone and ran[before.op] == 1 and _fits(model, before.op, node.norm, recorder):
            recorder.graph.ops[before.op] = replace(recorder.graph.ops[before.op], norm=node.norm)


def _fits(model: nn.Module, op: str, norm: str, recorder: _Recorder) -> bool:
    module, batch_norm = model.get_submodule(op), model.get_submodule(norm)
    handler = recorder.handlers[module]
    if not isinstance(handler, WeightedHandler) or not issubclass(float_class(batch_norm), handler.norm_types):
        return False
    assert isinstance(batch_norm, NORMS)
    channels = handler.output_channels(module)
    return batch_norm.running_mean is not None and batch_norm.num_features == channels


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _writes(function: Any) -> bool:
    """Whether a function writes into its first argument."""
    name = getattr(function, "__name__", "")
    return name in ("__setitem__",) or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
