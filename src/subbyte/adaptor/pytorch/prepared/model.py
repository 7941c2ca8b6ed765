"""A prepared model with its calibration data, as methods that recover accuracy work on it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.phase import Phase
from subbyte.adaptor.pytorch.prepared.blocks import find_blocks
from subbyte.adaptor.pytorch.prepared.capture import Call, calls_during, paired, stream_calls
from subbyte.adaptor.pytorch.prepared.chain import Link, find_links
from subbyte.adaptor.pytorch.prepared.data_flow import DataFlow, data_flow
from subbyte.adaptor.pytorch.prepared.memory import check_fits
from subbyte.adaptor.pytorch.prepared.turning import untie
from subbyte.adaptor.pytorch.prepared.weighted_op import WeightedOp
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.adaptor.pytorch.recurrent import Projection
from subbyte.adaptor.pytorch.state import QuantizationState, state_of
from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.numerics import sqnr


class PreparedModel:
    """What a method reads and writes.

    Args:
        model: prepared and calibrated; methods change it.
        batches: calibration data; empty where there is none.

    Attributes:
        ops: the weighted ops by name, in the order they run; those of recurrent modules, which no call can be seen
            of, are in `projections`.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Batch]) -> None:
        self.model = model
        self.batches = list(batches)
        self._reference: nn.Module | None = None
        self._known_links: Mapping[str, Link] | None = None
        self._last: tuple[str, list[Call], list[Call]] | None = None
        self._flow: DataFlow | None = None
        self._find_ops()

    def _find_ops(self) -> None:
        order = {op.name: place for place, op in enumerate(self.state.graph)}
        ranked = sorted(_weighted_ops(self.model), key=lambda op: order.get(op.name, len(order)))
        self.ops = {op.name: op for op in ranked if not isinstance(op.module, Projection)}
        self.projections = {op.name: op for op in ranked if isinstance(op.module, Projection)}

    @property
    def state(self) -> QuantizationState:
        return state_of(self.model)

    @property
    def input_quantizers(self) -> dict[str, ActivationQuantizer]:
        """The quantizers with static ranges, by the name of what they quantize."""
        quantizers = self.state.quantizers.items()
        return {name: quantizer for name, quantizer in quantizers if isinstance(quantizer, ActivationQuantizer)}

    def blocks(self) -> list[str]:
        """The names of the modules that hold all weighted ops, in the order they run; see `find_blocks`."""
        order = {name: place for place, name in enumerate(self.ops)}
        blocks = find_blocks(self.model, set(self.ops))
        return sorted(blocks, key=lambda block: min(order[op] for op in self.ops_of(block)))

    def ops_of(self, block: str) -> list[str]:
        """The weighted ops of a block, in the order they run."""
        return [name for name in self.ops if not block or name == block or name.startswith(f"{block}.")]

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Modules by name, in the order that the first batch calls them; those that it does not call come last."""
        names, called = list(names), []
        modules = {name: self.model.get_submodule(name) for name in names}
        hooks = [
            module.register_forward_pre_hook(lambda _, __, name=name: called.append(name))
            for name, module in modules.items()
        ]
        try:
            self.run(self.batches[0])
        finally:
            for hook in hooks:
                hook.remove()
        return list(dict.fromkeys([*called, *names]))

    @property
    def flow(self) -> DataFlow:
        """Which channels are which, on every path that the calibration data takes."""
        if self._flow is None:
            with self.phase("bypass"):
                self._flow = data_flow(self.model, self.batches)
        return self._flow

    def untie(self) -> None:
        """Give each op whose weight is another op's too a weight of its own."""
        untie(self.model)
        self.look_again()

    def look_again(self) -> None:
        """Find the ops anew, and how they hang together: after parameters were replaced."""
        self._flow = None
        self._find_ops()

    @property
    def reference(self) -> nn.Module:
        """The float model that what is quantized is to follow: see `keep_reference`."""
        return self.keep_reference()

    def keep_reference(self) -> nn.Module:
        """Keep the model as it is now, in float, until all scales are found anew; once kept it stays.

        It shares memory with this model until a weight is replaced.
        """
        if self._reference is None:
            parameters = {id(one): nn.Parameter(one.detach(), one.requires_grad) for one in self.model.parameters()}
            self._reference = copied(self.model, dict(parameters))
            state_of(self._reference).run.phase = "bypass"
        return self._reference

    def float_calls(self, name: str) -> Iterator[list[Call]]:
        """For each batch, the calls that a module gets in the reference model."""
        reference = self.reference
        return stream_calls(reference, reference.get_submodule(name), self.batches)

    def quantized_calls(self, name: str) -> Iterator[list[Call]]:
        """For each batch, the calls that a module gets in this model as it is quantized now."""
        return stream_calls(self.model, self.model.get_submodule(name), self.batches)

    def block_calls(self, name: str) -> tuple[list[Call], list[Call]]:
        """What a block is given and gives in this model as it is now, and in the reference model: call by call.

        Asked for in the order that blocks run, a block that directly follows the one before it is given what that one
        gives: then nothing else of the model runs. Only the calls of one block are kept.
        """
        link = self._links().get(name)
        if link is not None and self._last is not None and self._last[0] == link.before:
            _, quantized, reference = self._last
            before, following = self.part(link.before), self.reference_part(name)
            with torch.no_grad():
                inside = [link.follow(call, before(call.copied())) for call in quantized]
                floats = [link.follow(call, call.result) for call in reference]
                floats = [replace(call, output=following(call.copied())) for call in floats]
            found = inside, floats
        else:
            self._last = None  # before as much memory again is taken
            found = self._collect(name, self.quantized_calls(name)), self._collect(name, self.float_calls(name))
            deque(paired(name, *found), maxlen=0)  # refuses what has no counterpart
        self._last = (name, *found)
        return found

    def op_calls(self, name: str) -> Iterator[Call]:
        """The calls that an op gets in this model as it is quantized now; see `float_op_calls`."""
        return self._calls_inside(self.model, name)

    def float_op_calls(self, name: str) -> Iterator[Call]:
        """The same calls in the reference model.

        Ops are to be asked for in the order they run, with no change but to them and those before: then only the block
        that holds the op runs, on what `block_calls` keeps.
        """
        return self._calls_inside(self.reference, name)

    def _calls_inside(self, model: nn.Module, name: str) -> Iterator[Call]:
        block = next(block for block in self.blocks() if name in self.ops_of(block))
        module, most = model.get_submodule(name), None
        if block == name:
            yield from chain.from_iterable(stream_calls(model, module, self.batches))
            return
        if self._last is None or self._last[0] != block:
            self.block_calls(block)
        assert self._last is not None
        _, quantized, reference = self._last
        run = _part(model, block)
        for call in quantized if model is self.model else reference:
            with torch.no_grad():
                calls = calls_during(partial(run, call.copied()), module, most)
            most = max(len(calls), most or 0) or None
            yield from (replace(inner, place=(*call.place, *inner.place)) for inner in calls)

    def forget_calls(self) -> None:
        """Keep no calls of a block: before anything is changed that runs before it."""
        self._last = None

    def _collect(self, name: str, stream: Iterable[list[Call]]) -> list[Call]:
        found: list[Call] = []
        for index, calls in enumerate(stream):
            if index == 0:
                check_fits(name, calls, len(self.batches))
            found += calls
        return found

    def _links(self) -> Mapping[str, Link]:
        if self._known_links is None:
            self._known_links = find_links(self.reference, self.blocks(), self.batches[0])
        return self._known_links

    def part(self, name: str) -> Callable[[Call], Tensor]:
        """A module of the model as a function of what a call was given, whose first tensor it gives."""
        return _part(self.model, name)

    def reference_part(self, name: str) -> Callable[[Call], Tensor]:
        """The same module of the reference model."""
        return _part(self.reference, name)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Run the model for another purpose meanwhile: `bypass` is plain float."""
        run = self.state.run
        before, run.phase = run.phase, phase
        try:
            yield
        finally:
            run.phase = before

    @contextmanager
    def without_cache(self) -> Iterator[None]:
        """Keep a Hugging Face model from collecting keys and values, which no calibration batch goes on from."""
        configs = {id(config): config for module in self.model.modules() if (config := vars(module).get("config"))}
        caching = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
        try:
            for config in caching:
                config.use_cache = False
            yield
        finally:
            for config in caching:
                config.use_cache = True

    def run(self, batch: Batch) -> Any:
        """The model's output in eval(), without gradients; the model is left as it was."""
        with unchanged(self.model):
            return batch.copied().run(self.model)

    def recalibrate(self) -> None:
        """Find all scales anew: after a change of the float model.

        Raises:
            CalibrationError: something is not finite.
        """
        self._reference = self._last = None
        for op in (*self.ops.values(), *self.projections.values()):
            op.calibrate()
        self.observe()
        for quantizer in self.input_quantizers.values():
            quantizer.calibrate()

    def observe(self) -> None:
        """Collect the statistics of all static inputs anew; scales stay.

        Raises:
            CalibrationError: something is not finite.
        """
        for quantizer in self.input_quantizers.values():
            quantizer.statistics = None
        with self.phase("observe"):
            for batch in self.batches:
                self.run(batch)

    def measure_weights(self) -> None:
        """Note for the report what quantization leaves of each weight, beside the reference model's.

        The weights of this model may be on the grid by now, where nothing would be lost.
        """
        floats = {op.name: op for op in _weighted_ops(self.reference)}
        for op in (*self.ops.values(), *self.projections.values()):
            self.state.weight_sqnr[op.name] = sqnr([(floats[op.name].weight, op.quantized())])
            weight = op.module.weight
            self.state.weights_measured[op.name] = (weight.data_ptr(), weight._version)


def _part(model: nn.Module, name: str) -> Callable[[Call], Tensor]:
    module, run = model.get_submodule(name), state_of(model).run

    def part(call: Call) -> Tensor:
        awaited.begin(run)  # the BatchNorm of its last op may be outside of it
        return tensors_in(module(*call.args, **call.kwargs))[0]

    return part


def _weighted_ops(model: nn.Module) -> list[WeightedOp]:
    """All, in no order; what they share is known here, where the whole model is."""
    weighted = [module for module in model.modules() if isinstance(module, PreparedWeighted)]
    owners: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), set()).add(name.rpartition(".")[0])
    return [WeightedOp(each, tuple(sorted(owners[id(each.weight)] - {_owner(each)}))) for each in weighted]


def _owner(module: PreparedWeighted) -> str:
    """The module that holds the weight: of a matrix of a recurrent module that one."""
    return module.op_name.rpartition(".")[0] if isinstance(module, Projection) else module.op_name
