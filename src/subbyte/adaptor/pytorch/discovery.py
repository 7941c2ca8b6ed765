"""Discovery: one float forward that records ops, who makes and who reads each value, first and last layers."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.call_site import call_site
from subbyte.adaptor.pytorch.composites import COMPOSITES
from subbyte.adaptor.pytorch.functional_op import FunctionalOp, writes
from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_OPS, FUNCTIONAL_TYPES
from subbyte.adaptor.pytorch.graph import Call, Graph, Op
from subbyte.adaptor.pytorch.modules import ModuleHandler, WeightedHandler, handler_of
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.swap import float_class, positional

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class _Value:
    """What is known of one tensor.

    Args:
        producer: the node that made it.
        inputs: the network's inputs that it reads through no weighted op.
        weighted: whether a weighted op lies behind it.
        parameters: what it is made of, where that is parameters alone.
    """

    producer: str
    inputs: frozenset[str] = frozenset()
    weighted: bool = False
    parameters: frozenset[str] = frozenset()

    @property
    def is_data(self) -> bool:
        return self.weighted or bool(self.inputs)


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
    parameters: dict[int, str] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    samples: int = 1
    macs: Counter[str] = field(default_factory=Counter)
    operands: dict[tuple[str, str], list[list[_Value | None]]] = field(default_factory=dict)
    signals: set[str] = field(default_factory=set)

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

    def parameters_of(self, x: Any) -> frozenset[str]:
        """The parameters that a tensor is made of, where it is made of nothing else."""
        if isinstance(x, nn.Parameter | PackedWeight):
            return frozenset({self.parameters.get(id(x), "")})
        value = self.values.get(x)
        return frozenset() if value is None else value.parameters

    def new_value(self, key: str, tensors: Any, outputs: Any, weighted: bool) -> None:
        """Note where outputs come from: from these tensors, through the node `key`."""
        known = [source for source in self.known(tensors) if source is not None]
        value = _Value(
            key,
            inputs=frozenset() if weighted else frozenset().union(*(source.inputs for source in known)),
            weighted=weighted or any(source.weighted for source in known),
        )
        if not value.is_data:
            value = replace(value, parameters=frozenset().union(*map(self.parameters_of, tensors)))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self.values[output] = value

    def note_signals(self, tensors: Any) -> None:
        """What a weighted op reads as its input is a signal, as a mask is not."""
        sources = self.known(x for x in tensors if x.is_floating_point())
        self.signals.update(*(source.inputs for source in sources if source is not None))

    def unique(self, key: str) -> str:
        """A node for each call: a loop calls the same place several times."""
        numbered = (f"{key}#{number}" for number in count(2))
        return next(each for each in chain([key], numbered) if each not in self.nodes)

    def record_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self.names[module]
        tensors = [x for x in tree_leaves(inputs) if isinstance(x, Tensor)]
        sources = self.known(tensors)
        producers = tuple(source.producer for source in sources if source is not None)
        key = self.unique(name)
        handler = self.handlers.get(module)
        if handler is None:
            self.nodes[key] = _Node(producers, norm=name)
            self.new_value(key, tensors, output, weighted=False)
            return
        weighted = handler.holds_weight
        self.nodes[key] = _Node(producers, name, weighted)
        first = sources[0].producer if sources and sources[0] is not None else None
        reads_input = weighted and any(source is not None and source.inputs for source in sources)
        op = replace(
            module_op(module, name, handler),
            calls=(Call(call_site(), (first,)),),
            positions=frozenset({"first"} if reads_input else ()),
        )
        self.graph.merge(Graph({name: op}))
        self.macs[name] += handler.macs(module, inputs, output) if tensors else 0
        if weighted:
            self.note_signals(tensors)
        self.new_value(key, tensors, output, weighted)

    def record_function(self, op: FunctionalOp, function: Any, args: Any, kwargs: Any, output: Any) -> tuple[str, bool]:
        """Record a functional op; returns its node, and whether it multiplies by a weight."""
        inputs = op.inputs(args, kwargs)
        site = call_site(function.__name__)
        sources = self.known(inputs)
        name = self._function_name(op.op_type, site)
        producers = tuple(source.producer if source else None for source in sources)
        if op.op_type == "scaled_dot_product_attention":
            producers = (*producers[:2], None, producers[2])
        parameters = [self.parameters_of(x) for x in inputs]
        weighted = op.is_weighted([bool(names) for names in parameters])
        read = frozenset().union(*parameters) if weighted else frozenset()
        call = Call(site, producers, quantizable=False)
        recorded = Op(name, op.op_type, op.role, "function", self.scope, (call,), parameters=tuple(sorted(read)))
        self.graph.merge(Graph({name: recorded}))
        self.graph.order.setdefault(self.scope, []).append((op.op_type, site))
        self.macs[name] += op.macs(inputs, output, args)
        self.operands.setdefault((name, site), []).append(sources)
        if weighted or (op.role == "matmul" and all(source is not None and source.is_data for source in sources)):
            self.note_signals(inputs)
        return name, weighted

    def is_signal(self, source: _Value | None) -> bool:
        """Whether a value is one that is quantized: not a parameter, a constant, or a mask."""
        return source is not None and (source.weighted or not self.signals.isdisjoint(source.inputs))

    def note_weights_read(self, leaves: Any) -> None:
        """Of the weights among the arguments of a function that is called by no op: whose they are."""
        for leaf in leaves:
            if isinstance(leaf, nn.Parameter | PackedWeight) and id(leaf) in self.owners:
                self.graph.read_by_code.add(self.owners[id(leaf)])

    def _function_name(self, op_type: str, site: str) -> str:
        key = (self.scope, op_type, site)
        if key not in self.function_names:
            taken = {*self.function_names.values(), *self.names.values()}
            name = f"{self.scope}.{op_type}" if self.scope else op_type
            numbered = (f"{name}_{number}" for number in count(1))
            self.function_names[key] = next(each for each in chain([name], numbered) if each not in taken)
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
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        sources = recorder.known(tensors)
        output = function(*args, **kwargs)
        outputs = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        if writes(function) and tensors:
            outputs.append(tensors[0])
        if not outputs:
            return output
        recorder.note_weights_read(leaves)
        op = FUNCTIONAL_OPS.get(function)
        name, weighted = "", False
        if op is not None and op.inputs(args, kwargs):
            name, weighted = recorder.record_function(op, function, args, kwargs, output)
        key = recorder.unique(name or self._place(function.__name__))
        producers = tuple(source.producer for source in sources if source is not None)
        recorder.nodes[key] = _Node(producers, weighted=weighted)
        recorder.new_value(key, tensors, outputs, weighted)
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
    handlers = quantizable_modules(model)
    paths = {module: name for name, module in model.named_modules()}
    recorder = _Recorder(
        paths,
        handlers,
        function_names={} if names is None else names,
        parameters={id(parameter): name for name, parameter in model.named_parameters()},
        owners={id(module.weight): paths[module] for module, kind in handlers.items() if kind.role == "weighted"},
    )
    inputs = [x for x in tree_leaves((batch.args, batch.kwargs)) if isinstance(x, Tensor)]
    recorder.samples = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
    for index, x in enumerate(inputs):
        key = f"input{index}"
        recorder.nodes[key] = _Node(())
        recorder.values[x] = _Value(key, inputs=frozenset({key}))
    with unchanged(model), _hooks(recorder), _DiscoveryMode(recorder):
        output = batch.run(model)
    _mark_calls(recorder)
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
        failed = output is None  # it raised, and a caller may catch that
        if recorder.is_leaf(module) and not recorder.in_leaf and not failed:
            recorder.record_module(module, positional(module, args, kwargs), output)

    # Inside of the model's own hooks: what those compute is the caller's code.
    handles = [module.register_forward_pre_hook(enter) for module in recorder.names]
    options = {"with_kwargs": True, "prepend": True, "always_call": True}
    handles += [module.register_forward_hook(leave, **options) for module in recorder.names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mark_calls(recorder: _Recorder) -> None:
    """What is known once all has run: multiply-accumulates, and which values are of the kind that is quantized."""
    ops = recorder.graph.ops
    for name, op in ops.items():
        calls = op.calls
        if op.kind == "function":
            rule = all if FUNCTIONAL_TYPES[op.type].needs_all else any
            occurrences = {call.site: recorder.operands[name, call.site] for call in calls}
            calls = tuple(
                replace(call, quantizable=any(rule(map(recorder.is_signal, x)) for x in occurrences[call.site]))
                for call in calls
            )
        ops[name] = replace(op, calls=calls, macs=recorder.macs[name] // max(recorder.samples, 1))


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
        alone = alone and before.op not in recorder.graph.read_by_code
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
