"""What one forward shows while it runs: ops, who makes and who reads each value."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from subbyte.adaptor.pytorch.call_site import call_site
from subbyte.adaptor.pytorch.functional_op import FunctionalOp, written_in_forward
from subbyte.adaptor.pytorch.graph import Call, Graph, Op
from subbyte.adaptor.pytorch.holders import other_holders
from subbyte.adaptor.pytorch.modules import ModuleHandler, WeightedHandler, handler_of
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.swap import float_class
from subbyte.adaptor.pytorch.tensors import tensors_in

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Value:
    """What is known of one tensor.

    Args:
        producer: the node that made it.
        inputs: the network's inputs that it reads through no weighted op.
        weighted: whether a weighted op lies behind it.
        parameters: what it is made of, where that is parameters alone.
        unfollowed: whether it is made of a tensor of unknown origin (see Trace.note_unfollowed), and not of data.
    """

    producer: str
    inputs: frozenset[str] = frozenset()
    weighted: bool = False
    parameters: frozenset[str] = frozenset()
    unfollowed: bool = False

    @property
    def is_data(self) -> bool:
        return self.weighted or bool(self.inputs)


@dataclass
class Node:
    """One recorded call: an op, a norm, or any other torch function.

    Args:
        product: the op, where it is a convolution, a linear map or a matrix product.
        label: the op's name, or a description of what is no op.
        passes_codes: whether it hands on the codes that it is given, or their averages (see `consumers.py`).
    """

    sources: tuple[str, ...]
    op: str = ""
    weighted: bool = False
    norm: str = ""
    product: str = ""
    label: str = "code that calls no torch function"
    passes_codes: bool = False


@dataclass
class Trace:
    """Collects while the forward runs."""

    names: dict[nn.Module, str]
    handlers: dict[nn.Module, ModuleHandler]
    graph: Graph = field(default_factory=Graph)
    nodes: dict[str, Node] = field(default_factory=dict)
    values: Any = field(default_factory=WeakIdKeyDictionary)
    stack: list[nn.Module] = field(default_factory=list)
    function_names: dict[tuple[str, str, str], str] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    weight_memory: dict[int, str] = field(default_factory=dict)
    constants: set[int] = field(default_factory=set)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    macs: Counter[str] = field(default_factory=Counter)
    operands: dict[tuple[str, str], list[list[Value | None]]] = field(default_factory=dict)
    reading: dict[str, set[str]] = field(default_factory=dict)
    entries: set[str] = field(default_factory=set)
    signals: set[str] = field(default_factory=set)

    def is_leaf(self, module: nn.Module) -> bool:
        return module in self.handlers or isinstance(module, NORMS)

    @property
    def samples(self) -> int:
        """How many samples the batch held: the first axis of the input with the most axes that a layer reads."""
        read = [shape for key, shape in self.shapes.items() if key in self.entries] or list(self.shapes.values())
        widest = max(read, key=len, default=())  # not a time step, or positions, that the whole batch shares
        return max([*widest, 1][0], 1)

    @property
    def in_leaf(self) -> bool:
        return bool(self.stack) and self.is_leaf(self.stack[-1])

    @property
    def scope(self) -> str:
        return self.names.get(self.stack[-1], "") if self.stack else ""

    def known(self, tensors: Any) -> list[Value | None]:
        return [self.values.get(x) for x in tensors]

    def parameters_of(self, x: Any) -> frozenset[str]:
        """The parameters that a tensor is made of, where it is made of nothing else."""
        if isinstance(x, nn.Parameter | PackedWeight):
            return frozenset({self.parameters.get(id(x), "")})
        value = self.values.get(x)
        return frozenset() if value is None else value.parameters

    def note_unfollowed(self, tensors: Any) -> None:
        """Note float tensors that were made where no function is seen: by TorchScript, vmap, NumPy.

        They are taken to come from all that nothing has read so far. Such a tensor may as well be a constant that
        lies outside of the model, so it is no signal.
        """
        for x in tensors:
            held = isinstance(x, nn.Parameter | PackedWeight) or id(x) in self.constants or x in self.values
            if x.is_floating_point() and not held:
                key = self.unique(f"{self.scope}.unseen@{call_site()}")
                read = {source for node in self.nodes.values() for source in node.sources}
                self.nodes[key] = Node(tuple(name for name in self.nodes if name not in read))
                self.values[x] = Value(key, unfollowed=True)

    def behind(self, keys: Iterable[str]) -> set[str]:
        """These nodes and all that they come from, as far as the nearest weighted ops, these included."""
        pending, seen = list(keys), set[str]()
        while pending:
            key = pending.pop()
            if key not in seen:
                seen.add(key)
                pending.extend(() if self.nodes[key].weighted else self.nodes[key].sources)
        return seen

    def new_value(self, key: str, tensors: Any, outputs: Any, weighted: bool) -> None:
        """Note where outputs come from: from these tensors, through the node `key`."""
        known = [source for source in self.known(tensors) if source is not None]
        value = Value(
            key,
            inputs=frozenset() if weighted else frozenset().union(*(source.inputs for source in known)),
            weighted=weighted or any(source.weighted for source in known),
        )
        if not value.is_data:
            parameters = frozenset().union(*map(self.parameters_of, tensors))
            value = replace(value, parameters=parameters, unfollowed=any(source.unfollowed for source in known))
        for output in tensors_in(outputs):
            self.values[output] = value

    def note_reading(self, name: str, tensors: Any) -> None:
        """Note which inputs of the network a weighted op reads.

        One that it reads as it came, or through functions alone, is an entry of the network, and of float type a
        signal. A mask that was added on the way is neither.
        """
        for x, source in zip(tensors, self.known(tensors), strict=True):
            if source is not None:
                self.reading.setdefault(name, set()).update(source.inputs)
                self.entries.update(source.inputs if not source.weighted else ())
                self.signals.update(source.inputs if not source.weighted and x.is_floating_point() else ())
            if source is not None and source.unfollowed:
                inputs = self.behind([source.producer]) & self.shapes.keys()
                self.reading[name].update(inputs)
                self.entries.update(inputs)

    def unique(self, key: str) -> str:
        """A node for each call: a loop calls the same place several times."""
        numbered = (f"{key}#{number}" for number in count(2))
        return next(each for each in chain([key], numbered) if each not in self.nodes)

    def record_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self.names[module]
        tensors = tensors_in(inputs)
        self.note_unfollowed(tensors)
        sources = self.known(tensors)
        producers = tuple(source.producer for source in sources if source is not None)
        key = self.unique(name)
        handler = self.handlers.get(module)
        if handler is None:
            self.nodes[key] = Node(producers, norm=name, label=f"{float_class(module).__name__} {name!r}")
            self.new_value(key, tensors, output, weighted=False)
            return
        weighted = handler.holds_weight
        self.nodes[key] = Node(producers, name, weighted, product=name if handler.is_product else "", label=name)
        first = sources[0].producer if sources and sources[0] is not None else None
        op = replace(
            module_op(module, name, handler),
            calls=(Call(call_site(), (first,)),),
        )
        self.graph.merge(Graph({name: op}))
        self.macs[name] += handler.macs(module, inputs, output) if tensors else 0
        if weighted:
            self.note_reading(name, tensors)
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
        recorded = Op(
            name, op.op_type, op.role, "function", self.scope, (call,),
            parameters=tuple(sorted(read)), unfollowed=any(source and source.unfollowed for source in sources),
        )  # fmt: skip
        self.graph.merge(Graph({name: recorded}))
        self.graph.order.setdefault(self.scope, []).append((op.op_type, site))
        self.macs[name] += op.macs(inputs, output, args)
        self.operands.setdefault((name, site), []).append(sources)
        if weighted or (op.role == "matmul" and all(source is not None and source.is_data for source in sources)):
            self.note_reading(name, inputs)
        return name, weighted

    def refuse_writing(self, target: Any, function: Any) -> None:
        """Refuse a function that writes into the weight of an op: it will be packed, and is the caller's until then.

        Raises:
            ModelError: naming the op.
        """
        memory = memory_of(target)
        if memory and memory in self.weight_memory:
            raise written_in_forward(self.weight_memory[memory], function)

    def is_signal(self, source: Value | None) -> bool:
        """Whether a value is one that is quantized: not a parameter, a constant, or a mask."""
        return source is not None and (source.weighted or not self.signals.isdisjoint(source.inputs))

    def note_weights_read(self, leaves: Any) -> None:
        """Of the weights among the arguments of a function that is called by no op: whose they are."""
        for leaf in leaves:
            if isinstance(leaf, nn.Parameter | PackedWeight) and id(leaf) in self.owners:
                self.graph.read_by_code.add(self.owners[id(leaf)])
                self.graph.readers.add(self.scope)

    def _function_name(self, op_type: str, site: str) -> str:
        key = (self.scope, op_type, site)
        if key not in self.function_names:
            taken = {*self.function_names.values(), *self.names.values()}
            name = f"{self.scope}.{op_type}" if self.scope else op_type
            numbered = (f"{name}_{number}" for number in count(1))
            self.function_names[key] = next(each for each in chain([name], numbered) if each not in taken)
        return self.function_names[key]


def quantizable_modules(model: nn.Module) -> dict[nn.Module, ModuleHandler]:
    """The modules of a float or prepared model whose type has a handler, each once."""
    found = {}
    for module in model.modules():
        handler = handler_of(module)
        if handler is not None:
            found[module] = handler
    return found


def memory_of(value: Any) -> int:
    """Where the values of a tensor lie, as of every view of it; 0 where it has none, or is no tensor."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0


def op_weights(model: nn.Module) -> dict[Any, str]:
    """Each weight that an op quantizes, and the op's name."""
    handlers = quantizable_modules(model)
    names = {module: name for name, module in model.named_modules()}
    return {weight: names[module] for module, handler in handlers.items() for weight in handler.weights(module)}


def with_held_weights(model: nn.Module) -> Graph:
    """A graph that knows the weights of ops which modules that are no ops hold too: their code may read them."""
    owners = {id(weight): name for weight, name in op_weights(model).items()}
    names = {module: name for name, module in model.named_modules()}
    holders = other_holders(model, owners)
    held = {owners[weight] for holder in holders for weight in holder.weights}
    return Graph(read_by_code=held, readers={names[holder.module] for holder in holders})


def module_op(module: nn.Module, name: str, handler: ModuleHandler) -> Op:
    """A module as an op that no forward has reached yet."""
    return Op(name, handler.op_type, handler.role, "module", depthwise=handler.is_depthwise(module))


def takes_norm(handler: ModuleHandler | None, module: nn.Module, norm: nn.Module) -> bool:
    """Return whether `norm` is a BatchNorm that can be folded into an op: of a type for it, and as many channels."""
    if not isinstance(handler, WeightedHandler) or not issubclass(float_class(norm), handler.norm_types):
        return False
    assert isinstance(norm, NORMS)
    return norm.running_mean is not None and norm.num_features == handler.output_channels(module)
