"""A float model and the quantized one, run on the same batches; the outputs of their ops meet batch by batch."""

from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.call_site import call_site
from subbyte.adaptor.pytorch.comparison.following import FloatMode, Follower, QuantizedMode, copies
from subbyte.adaptor.pytorch.comparison.op_alone import channel_axis, note_weights, watched, with_inputs, with_weight
from subbyte.adaptor.pytorch.comparison.op_error import OpError, floats_in
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.fingerprint import difference, fingerprint
from subbyte.adaptor.pytorch.float_model import check_float
from subbyte.adaptor.pytorch.functional_mode import ScopedModule
from subbyte.adaptor.pytorch.functional_op import Function, FunctionalOp, written
from subbyte.adaptor.pytorch.graph import Op
from subbyte.adaptor.pytorch.inputs import Slots
from subbyte.adaptor.pytorch.modules import WeightedHandler
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted, QuantizedModule, WeightedModule
from subbyte.adaptor.pytorch.splitting import DEFAULT_BATCH_SIZE, split_batches
from subbyte.adaptor.pytorch.state import is_quantized, state_of
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.errors import CalibrationError, ModelError

OUTPUT = "output"


@dataclass
class Meeting:
    """What was lost in all batches.

    Args:
        ops: of each op that ran, in the order they first did.
        output: of the model itself.
        unreached: ops that no batch came to.
        samples: how many there were.
    """

    ops: dict[str, OpError] = field(default_factory=dict)
    output: OpError = field(default_factory=lambda: OpError(Op(OUTPUT, OUTPUT, "other", "function")))
    unreached: list[str] = field(default_factory=list)
    samples: int = 0


def meet(float_model: nn.Module, q_model: nn.Module, data: Any, batch_size: int = DEFAULT_BATCH_SIZE) -> Meeting:
    """Run both models on each batch and compare the outputs of their ops; neither is changed.

    What is kept at a time is the outputs of the float model's ops on one batch.

    Args:
        float_model: that the other was made from.
        q_model: prepared or converted, on kernels or not.
        data, batch_size: as for `subbyte.quantize`.

    Raises:
        ModelError: the first model is not float, the second not quantized, or not from the first.
        CalibrationError: the data is empty, or does not fit the models.
        UnseenOpError: a batch takes a path that no calibration batch took.
    """
    _check(float_model, q_model)
    _check_scales(q_model)
    stream = iter(split_batches(float_model, data, batch_size))
    first = next(stream)
    awaits_functions = state_of(q_model).found_later is not None
    comparing = _Comparing(float_model, _with_functions(q_model, first) if awaits_functions else q_model)
    for batch in chain([first], stream):
        comparing.add(batch)
    return comparing.result()


def _check(float_model: nn.Module, q_model: nn.Module) -> None:
    if is_quantized(float_model):
        raise ModelError("the first model is quantized; give the float model first, then the quantized one")
    check_float(float_model)
    differs = difference(state_of(q_model).fingerprint, fingerprint(float_model), "the quantized model")
    if differs:
        raise ModelError(
            f"the quantized model was not made from this {type(float_model).__name__}: {differs}; "
            "give the float model that was quantized"
        )
    devices = [
        next(chain(model.parameters(), model.buffers()), torch.empty(0)).device for model in (float_model, q_model)
    ]
    if devices[0] != devices[1]:
        raise ModelError(f"the float model is on {devices[0]}, the quantized one on {devices[1]}; move one of them")


def _with_functions(q_model: nn.Module, batch: Batch) -> nn.Module:
    """A copy of a model that was quantized without data, its functional ops found in a first forward."""
    model = copied(q_model).eval()
    with torch.random.fork_rng(), torch.no_grad():
        batch.copied().run(model)
    return model


class _Comparing:
    """Both models, and what has been counted so far."""

    def __init__(self, float_model: nn.Module, q_model: nn.Module) -> None:
        self.models = (float_model, q_model)
        self.graph = state_of(q_model).graph
        self.float_modules = dict(float_model.named_modules())
        self.modules = dict(q_model.named_modules())
        self.shown = {op.name for op in self.graph if not op.fused and (op.quantizable or op.macs or op.parameters)}
        held = {op.name: op.norm for op in self.graph if op.norm and _holds_norm(self.modules[op.name])}
        self.norm_of = held
        self.op_before = {norm: name for name, norm in held.items()}
        self.read_by_code = {
            id(self.float_modules[module.op_name].weight): module for module in state_of(q_model).run.read_by_code
        }
        self.waiting: dict[str, deque[list[Tensor]]] = {}  # outputs of the float model in this batch
        self.before_norm: dict[str, tuple[tuple[Any, ...], Slots]] = {}
        self.meeting = Meeting()

    def add(self, batch: Batch) -> None:
        """Run one batch through both."""
        try:
            expected = self._run_float(batch)
            got = self._run_quantized(batch)
        except CalibrationError as error:
            with unchanged(self.models[0]):
                batch.copied().run(self.models[0])  # raises itself where it is the data that is wrong
            raise ModelError(
                f"the quantized model does not run on batch {batch.index}, on which the float model does "
                f"({error.__cause__ or error}); quantize again"
            ) from error
        for name, left in self.waiting.items():
            self.meeting.ops[name].unmet += len(left)
        self.waiting.clear()
        self.meeting.output.add_call(expected, got)
        self.meeting.samples += batch.samples

    def result(self) -> Meeting:
        reached = self.meeting.ops
        self.meeting.unreached = [op.name for op in self.graph if op.name in self.shown and op.name not in reached]
        return self.meeting

    def _run_float(self, batch: Batch) -> list[Tensor]:
        model, follower = self.models[0], Follower(self.models[0], self.graph)
        with unchanged(model), follower.following(self.shown | self.op_before.keys(), self._float_module):
            with FloatMode(follower, self._float_function):
                output = batch.copied().run(model)
            return _kept(output)

    def _run_quantized(self, batch: Batch) -> list[Tensor]:
        model, follower = self.models[1], Follower(self.models[1], self.graph)

        def leave(name: str, args: Any, output: Any) -> None:
            self._quantized_output(name, output)

        with unchanged(model), follower.following(self.shown, leave):
            with QuantizedMode(follower, self._quantized_output):
                output = batch.copied().run(model)
            return floats_in(output)

    def _float_module(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        with torch._C.DisableTorchFunction():
            if name in self.norm_of:
                self.before_norm[name] = args, self._slots(name)
                return
            op_name = self.op_before.get(name, name)
            args, slots = self.before_norm.pop(op_name) if name in self.op_before else (args, self._slots(name))
            self._note_module(op_name, slots, args, output)
            self._float_output(op_name, output)

    def _note_module(self, name: str, slots: Slots, args: tuple[Any, ...], output: Any) -> None:
        module, float_module = self.modules[name], self.float_modules[name]
        norm: Any = self.float_modules[self.norm_of[name]] if name in self.norm_of else None
        first = name not in self.meeting.ops
        error = self._error(name)
        if not isinstance(module, QuantizedModule):
            return
        if first:
            note_weights(error, module, float_module, norm, state_of(self.models[1]).weight_sqnr)
            error.reads_columns = isinstance(module.handler, WeightedHandler) and module.handler.takes_activation
        axis = channel_axis(module)
        got = with_weight(module, *args)
        if got is not None:
            error.add_weight_alone(output, got, axis)
        got = with_inputs(module, float_module, slots, error, *args)
        if got is not None:
            error.add_inputs_alone(output, got if norm is None else type(norm).forward(norm, got), axis)

    def _float_function(
        self, name: str, op: FunctionalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name not in self.shown:
            return function(*args, **kwargs)
        slots = self._function_slots(name, op, function)
        given = copies((args, kwargs)) if written(function, args, kwargs) is not None else (args, kwargs)
        output = function(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._note_function(self._error(name), op, function, given, slots, output)
            self._float_output(name, output)
        return output

    def _note_function(
        self, error: OpError, op: FunctionalOp, function: Function, given: Any, slots: Slots, output: Any
    ) -> None:
        if any(id(leaf) in self.read_by_code for leaf in tree_leaves(given)):
            args, kwargs = tree_map(self._quantized_weight, given)
            error.add_weight_alone(output, function(*args, **kwargs), -1)
        if any(slot is not None for slot in slots):
            args, kwargs = given
            kwargs = {key: value for key, value in kwargs.items() if key != "out"}
            error.add_inputs_alone(output, op.run(function, args, kwargs, watched(slots, error)), -1)

    def _quantized_weight(self, leaf: Any) -> Any:
        module: WeightedModule | None = self.read_by_code.get(id(leaf))
        return leaf if module is None else module.read_weight()

    def _function_slots(self, name: str, op: FunctionalOp, function: Function) -> Slots:
        module = self.modules[self.graph.ops[name].scope]
        if not isinstance(module, ScopedModule) or not module.functional_scope.active:
            return ()
        return module.functional_scope.slots.get((op.op_type, call_site(function.__name__)), ())

    def _slots(self, name: str) -> Slots:
        """The quantizers of the call of a module that is being made; none where the quantized model will refuse it."""
        module = self.modules[name]
        if not isinstance(module, QuantizedModule):
            return ()
        inputs, site = module.input_quantizers, call_site()
        if inputs.always is not None:
            return inputs.always
        if not site and len(inputs.by_site) == 1:
            return next(iter(inputs.by_site.values()))
        return inputs.by_site.get(site, ())

    def _error(self, name: str) -> OpError:
        return self.meeting.ops.setdefault(name, OpError(self.graph.ops[name]))

    def _float_output(self, name: str, output: Any) -> None:
        self.waiting.setdefault(name, deque()).append(_kept(output))

    def _quantized_output(self, name: str, output: Any) -> None:
        if name not in self.shown:
            return
        waiting = self.waiting.get(name)
        with torch._C.DisableTorchFunction():
            if waiting:
                self._error(name).add_call(waiting.popleft(), floats_in(output))
            elif name in self.meeting.ops:
                self.meeting.ops[name].unmet += 1


def _check_scales(q_model: nn.Module) -> None:
    weights = [module.weight_quantizer for module in q_model.modules() if isinstance(module, PreparedWeighted)]
    broken = [each.name for each in weights if not bool((each.scale.isfinite() & (each.scale > 0)).all())]
    if broken:
        raise ModelError(
            f"the quantized model does not run: the scales of the weights of {', '.join(broken)} are not all positive "
            "and finite; quantize again"
        )


def _holds_norm(module: Any) -> bool:
    if isinstance(module, PreparedWeighted):
        return bool(module.norm)
    return isinstance(module, WeightedModule) and module.awaits_norm


def _kept(output: Any) -> list[Tensor]:
    """Copies: what follows may write into an op's output."""
    return [x.detach().clone() for x in floats_in(output)]
