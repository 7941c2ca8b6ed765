"""Whose output channels are whose input channels: what may be scaled, or turned, in one place and undone in another."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.batch_norm import FoldedBatchNorm
from subbyte.adaptor.pytorch.composites import COMPOSITES
from subbyte.adaptor.pytorch.functional_op import written
from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.adaptor.pytorch.prepared.channel_rules import (
    LEAKS,
    NONE,
    RULES,
    SHAPE_ONLY,
    FunctionCall,
    Notes,
    compact,
)
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.swap import float_class, positional
from subbyte.adaptor.pytorch.tensors import leaves_in, tensors_in
from subbyte.adaptor.pytorch.trace import NORMS
from subbyte.adaptor.pytorch.unchanged import unchanged

Kind = Literal["weighted", "table", "norm", "batch_norm"]


@dataclass(frozen=True)
class Source:
    """A module whose output channels can be scaled by its own parameters.

    Args:
        name: of the module.
        kind: `weighted`: an op; `table`: an Embedding; `norm`: LayerNorm, RMSNorm and the like; `batch_norm`: one
            that is not folded.
        first: the number of its first channel.
        channels: how many it has.
    """

    name: str
    kind: Kind
    first: int
    channels: int

    @property
    def numbers(self) -> slice:
        """Its channels among those of all sources."""
        return slice(self.first, self.first + self.channels)


@dataclass(frozen=True)
class ChannelLink:
    """A source, and the weighted ops that read its channels.

    Args:
        source: what can be divided by a factor for each channel.
        free: bool [channels]: those that reach weighted ops through functions f with f(s x) = s f(x), and nothing else.
        readers: for each op, of each of its input channels which channel of the source it is, or NONE.
    """

    source: Source
    free: Tensor
    readers: Mapping[str, Tensor]


@dataclass(frozen=True)
class DataFlow:
    """What the forwards of a model show.

    Args:
        sources: by name, in the order they ran.
        readers: of each weighted op and each norm, the channel that each of its input channels is, or NONE.
        blocked: bool [all channels]: those read by something else too.
        bent: those that went through a function that scales but is not linear.
        streams: of each channel the lowest number among those that it is added to, itself included.
        bundles: of each channel the lowest number among those that are mixed with the same coefficients, as the
            channels of an attention head; NONE where nothing mixes.
    """

    sources: Mapping[str, Source]
    readers: Mapping[str, Tensor]
    blocked: Tensor
    bent: Tensor
    streams: Tensor
    bundles: Tensor

    @property
    def added(self) -> Tensor:
        """bool [all channels]: those that are added to another's."""
        return torch.bincount(self.streams, minlength=len(self.streams))[self.streams] > 1

    def links(self) -> Iterator[ChannelLink]:
        """The sources of which a channel is free, and not added to another's."""
        norms = {name for name, source in self.sources.items() if source.kind in ("norm", "batch_norm")}
        read, normed = torch.zeros_like(self.blocked), torch.zeros_like(self.blocked)
        for name, numbers in self.readers.items():
            (normed if name in norms else read)[numbers[numbers != NONE].unique().long()] = True
        free = read & ~self.blocked & ~normed & ~self.added
        for source in self.sources.values():
            if source.kind == "table" or not bool(free[source.numbers].any()):
                continue
            readers = {name: self._within(source, numbers) for name, numbers in self.readers.items()}
            reading = {name: own for name, own in readers.items() if bool((own != NONE).any()) and name not in norms}
            yield ChannelLink(source, free[source.numbers], reading)

    def _within(self, source: Source, numbers: Tensor) -> Tensor:
        own = numbers - source.first
        return torch.where((own >= 0) & (own < source.channels), own, NONE)


def data_flow(model: nn.Module, batches: list[Batch]) -> DataFlow:
    """Run batches in float, and follow the channels of every weighted op and norm.

    Args:
        model: prepared, in phase `bypass`; it is left as it was.
        batches: every path that the model can take must be taken by one.
    """
    trace = _Trace(model)
    for batch in batches:
        trace.run(batch)
    return trace.flow()


class _Trace:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = {module: name for name, module in model.named_modules()}
        held = Counter(id(one) for module in self.names for one in module._parameters.values() if one is not None)
        self.shared = {number for number, count in held.items() if count > 1}
        self.read_by_code = state_of(model).graph.read_by_code
        self.sources: dict[str, Source] = {}
        self.readers: dict[str, Tensor] = {}
        self.notes = Notes()
        self.count = 0
        self.labels: Any = WeakIdKeyDictionary()
        self.leaf: nn.Module | None = None

    def run(self, batch: Batch) -> None:
        self.labels = WeakIdKeyDictionary()
        self.leaf = None
        with unchanged(self.model), self._hooks(), _LabelMode(self):
            output = batch.copied().run(self.model)
        self.block(shown(output))

    def labels_of(self, x: Any) -> Tensor | None:
        """The channels of the elements of a tensor, where they are known."""
        return self.labels.get(x) if isinstance(x, Tensor) else None

    def block(self, tensors: Any) -> None:
        """Something reads these in a way that is not known: nothing may scale them."""
        self.notes.blocked += [labels for x in tensors_in(tensors) if (labels := self.labels.get(x)) is not None]

    def flow(self) -> DataFlow:
        notes = self.notes
        bundles = torch.full((self.count,), NONE)
        for rows in notes.bundles:
            for row in compact(rows, keep=1).reshape(-1, rows.shape[-1]).unique(dim=0):
                inside = row[row != NONE].long()
                bundles[inside] = inside.min() if len(inside) else NONE
        return DataFlow(
            self.sources, self.readers, self._mask(notes.blocked), self._mask(notes.bent), self._streams(), bundles
        )

    def _mask(self, found: list[Tensor]) -> Tensor:
        mask = torch.zeros(self.count, dtype=torch.bool)
        for labels in found:
            numbers = compact(labels).unique()
            mask[numbers[numbers != NONE].long()] = True
        return mask

    def _streams(self) -> Tensor:
        streams = torch.arange(self.count)
        pairs = [torch.stack(tie, -1).reshape(-1, 2).unique(dim=0) for tie in self.notes.ties]
        first, second = torch.cat(pairs).long().unbind(1) if pairs else (streams[:0], streams[:0])
        while True:
            before = streams
            lower = torch.minimum(streams[first], streams[second])
            streams = streams.scatter_reduce(0, first, lower, "amin").scatter_reduce(0, second, lower, "amin")
            if torch.equal(streams, before):
                return streams

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = []
        for module in self.names:
            if _is_leaf(module):
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(
                    module.register_forward_hook(self._leave, with_kwargs=True, prepend=True, always_call=True)
                )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.leaf = self.leaf or module

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.leaf is not module:
            return
        if output is not None:  # else it raised
            self._record(module, positional(module, args, kwargs), output)
        self.leaf = None

    def _record(self, module: nn.Module, args: Any, output: Any) -> None:
        handler, inputs = handler_of(module), tensors_in(args)
        if isinstance(module, FoldedBatchNorm | nn.LeakyReLU) and inputs and isinstance(output, Tensor):
            self._pass(inputs[0], output, bends=isinstance(module, nn.LeakyReLU))
        elif isinstance(handler, WeightedHandler) and isinstance(output, Tensor):
            self._record_weighted(module, handler, inputs, output)
        elif isinstance(module, NORMS):
            self.block(args)
            self._make(module, "batch_norm", output, module.num_features, axis=1 - output.ndim)
        elif len(inputs) == 1 and isinstance(output, Tensor) and _scales_by_parameters(module, args, output):
            self._read(module, inputs[0], -1)
            self._make(module, "norm", output, output.shape[-1], axis=-1)
        else:
            self.block(args)

    def _record_weighted(self, module: nn.Module, handler: WeightedHandler, inputs: Any, output: Tensor) -> None:
        if not handler.takes_activation:
            self._make(module, "table", output, output.shape[-1], axis=-1)
            return
        channels = handler.output_channels(module)
        axis = -handler.over_output(torch.empty(channels)).ndim
        self._read(module, inputs[0], axis)
        self.block(inputs[1:])
        self._make(module, "weighted", output, channels, axis)

    def _pass(self, x: Tensor, output: Tensor, *, bends: bool) -> None:
        labels = self.labels.get(x)
        if labels is not None:
            self.labels[output] = labels
            self.notes.bent += [labels] if bends else []

    def _make(self, module: nn.Module, kind: Kind, output: Tensor, channels: int, axis: int) -> None:
        name = self.names[module]
        if name not in self.sources:
            self.sources[name] = Source(name, kind, self.count, channels)
            self.count += channels
        source = self.sources[name]
        numbers = torch.arange(source.first, source.first + channels, dtype=torch.int32, device=output.device)
        self.labels[output] = numbers.reshape(-1, *[1] * (-axis - 1)).expand(output.shape)
        if self._is_shared(module):
            self.block(output)

    def _read(self, module: nn.Module, x: Tensor, axis: int) -> None:
        """Note what an op reads, where that is the same at all places and at every call."""
        name, labels = self.names[module], self.labels.get(x)
        channels = x.shape[axis]
        read = torch.full((channels,), NONE, dtype=torch.int32)
        if labels is not None:
            rows = labels.movedim(axis, -1)
            row = rows[(0,) * (rows.ndim - 1)] if x.numel() else read
            if bool((compact(rows, keep=1) == row).all()) and not self._is_shared(module):
                read = row.cpu()
            else:
                self.notes.blocked.append(labels)
        before = self.readers.setdefault(name, read)
        if not torch.equal(before, read):
            self.notes.blocked += [before, read]

    def _is_shared(self, module: nn.Module) -> bool:
        if self.names[module] in self.read_by_code:
            return True
        return any(id(one) in self.shared for one in module._parameters.values() if one is not None)


class _LabelMode(TorchFunctionMode):
    def __init__(self, trace: _Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        trace = self.trace
        if trace.leaf is not None:
            return function(*args, **kwargs)
        if function in COMPOSITES:
            with self:
                return COMPOSITES[function](*args, **kwargs)
        given = [x for x in leaves_in((args, kwargs)) if isinstance(x, Tensor) and x in trace.labels]
        target = written(function, args, kwargs)
        output = function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if not given or name in SHAPE_ONLY or not (tensors_in(output) or name in LEAKS or target is not None):
            if target is not None:
                trace.block([target])
            return output
        labels = None
        if name in RULES and (target is None or target is output):
            labels = RULES[name](FunctionCall(function, args, kwargs, output, trace.labels_of, trace.notes))
        if labels is None:
            trace.block([*given, target])
        self._label(output if target is None else target, labels)
        return output

    def _label(self, output: Any, labels: Any) -> None:
        made = [labels] if isinstance(labels, Tensor) else list(labels or ())
        for index, x in enumerate(tensors_in(output)):
            self.trace.labels.pop(x, None)
            if index < len(made):
                self.trace.labels[x] = made[index]


def shown(output: Any) -> list[Tensor]:
    """The tensors that a model gives to its caller; a cache of keys and values is read by the model alone."""
    if isinstance(output, Mapping) and "past_key_values" in output:
        output = {key: value for key, value in output.items() if key != "past_key_values"}
    return [leaf for leaf in leaves_in(output) if isinstance(leaf, Tensor)]


def _is_leaf(module: nn.Module) -> bool:
    return handler_of(module) is not None or isinstance(module, NORMS) or _looks_like_norm(module)


def _looks_like_norm(module: nn.Module) -> bool:
    """Whether it holds nothing but one `weight`, and it may be one `bias`, for each channel."""
    own = {name for name, value in module._parameters.items() if value is not None}
    if own not in ({"weight"}, {"weight", "bias"}) or next(module.children(), None) is not None:
        return False
    return not isinstance(module, nn.PReLU) and all(one.ndim == 1 for one in module.parameters())


def _scales_by_parameters(module: nn.Module, args: Any, output: Tensor) -> bool:
    """Whether each channel of what a module gives grows in proportion with its weight and bias: tried out."""
    if not _looks_like_norm(module) or output.shape[-1:] != module._parameters["weight"].shape:  # type: ignore[union-attr]
        return False
    parameters = dict(module._parameters)
    factor = torch.linspace(0.5, 2, output.shape[-1], device=output.device)
    try:
        for name, one in parameters.items():
            if one is not None:
                module._parameters[name] = nn.Parameter(one.detach() * factor.to(one.dtype), requires_grad=False)
        scaled = float_class(module).forward(module, *args)
    finally:
        module._parameters.update(parameters)
    return torch.allclose(scaled.float(), output.float() * factor, rtol=1e-2, atol=1e-5)
