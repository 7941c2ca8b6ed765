"""Quantizing the torch functions that a module's own code calls."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.call_site import call_site, unseen
from subbyte.adaptor.pytorch.composites import COMPOSITES
from subbyte.adaptor.pytorch.functional_op import written, written_in_forward
from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_OPS
from subbyte.adaptor.pytorch.half import in_half
from subbyte.adaptor.pytorch.inputs import Slots
from subbyte.adaptor.pytorch.phase import Run
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.adaptor.pytorch.swap import Swapped, float_class
from subbyte.dtypes import DataType
from subbyte.errors import UnseenOpError
from subbyte.numerics import rectify

SiteKey = tuple[str, str]  # type of op, place
RELUS = frozenset([F.relu, torch.relu, torch.Tensor.relu])


@dataclass
class FunctionalScope:
    """The functional ops of one module's code.

    Args:
        name: of the module; empty for the model itself.
        run: what the model's forward is for.
        slots: the quantizers of each known op; an op that stays float has None in every slot.
        halves: the float types of 16 bits, of those known ops that compute in one.
        order: the ops in the order one forward ran them; torch.compile, which sees no places, goes by it.
        active: whether functional ops are looked up; otherwise they run as they are.
        before_first: of a model quantized without data: called once with the model and its arguments, it finds
            the functional ops.
    """

    name: str
    run: Run
    slots: dict[SiteKey, Slots] = field(default_factory=dict)
    halves: dict[SiteKey, DataType] = field(default_factory=dict)
    order: list[SiteKey] = field(default_factory=list)
    active: bool = False
    before_first: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None] | None = None

    def __iter__(self) -> Iterator[InputQuantizer]:
        for slots in self.slots.values():
            yield from (slot for slot in slots if slot is not None)


class FunctionalMode(TorchFunctionMode):
    """Active while a scope's forward runs; sends each known op to its quantizers, refuses unknown ones.

    Args:
        scope: the innermost one that is running.
    """

    def __init__(self, scope: FunctionalScope) -> None:
        super().__init__()
        self.scope = scope
        self.calls = 0

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.scope.run.read_by_code:
            args, kwargs = _with_quantized_weights(self.scope.run.read_by_code, function, (args, kwargs or {}))
        op = FUNCTIONAL_OPS.get(function)
        if not self.scope.active or (op is None and function not in COMPOSITES):  # most functions
            if function in RELUS and self.scope.run.trained and is_differentiated(args, kwargs):
                return rectify(args[0])
            return function(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        if op is None:
            with self:
                return COMPOSITES[function](*args, **kwargs)
        if not op.inputs(args, kwargs):
            return function(*args, **kwargs)
        key = self._key(op.op_type, function)
        if key not in self.scope.slots:
            raise UnseenOpError(f"{op.op_type} in {self.scope.name or 'the model'} {unseen()}")
        out = kwargs.pop("out", None)
        half = self.scope.halves.get(key) if self.scope.run.quantizes else None
        with torch._C.DisableTorchFunction():
            if half is not None:
                result = in_half(function, args, kwargs, half.torch_dtype)
            else:
                result = op.run(function, args, kwargs, self.scope.slots[key])
            return result if out is None else out.resize_(result.shape).copy_(result)

    def check_order(self) -> None:
        """Under torch.compile, which sees no places: refuse a forward that took another way than the one recorded.

        Raises:
            UnseenOpError: the functional ops of this scope depend on control flow.
        """
        if self.calls != len(self.scope.order) or set(self.scope.slots) != set(self.scope.order):
            raise UnseenOpError(
                f"the functions of {self.scope.name or 'the model'} depend on control flow, which torch.compile cannot "
                "follow; compile around it, or run this model without torch.compile"
            )

    def _key(self, op_type: str, function: Any) -> SiteKey:
        if not torch.compiler.is_compiling():
            return (op_type, call_site(function.__name__))
        if self.calls < len(self.scope.order) and self.scope.order[self.calls][0] == op_type:
            self.calls += 1
            return self.scope.order[self.calls - 1]
        return (op_type, f"call {self.calls} under torch.compile")


def is_differentiated(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Whether a relu of these arguments gives a new tensor, and one with a gradient, in plain Python."""
    if torch.compiler.is_compiling() or len(args) != 1 or (kwargs or {}).get("inplace"):
        return False
    return bool(args[0].requires_grad) and torch.is_grad_enabled()


def _with_quantized_weights(modules: list[Any], function: Any, given: Any) -> Any:
    """Arguments with the weights of quantized modules replaced by what those compute with.

    Raises:
        ModelError: the function writes into one.
    """
    weights = {id(module.weight): module for module in modules}

    def quantized(leaf: Any) -> Any:
        return weights[id(leaf)].read_weight() if id(leaf) in weights else leaf

    target = None if torch.compiler.is_compiling() else written(function, *given)
    if id(target) in weights:
        raise written_in_forward(weights[id(target)].op_name, function)
    with torch._C.DisableTorchFunction():
        return tree_map(quantized, given)


class ScopedModule(Swapped):
    """Mixin of a module whose own code calls functional ops, or reads weights of its children."""

    functional_scope: FunctionalScope

    def own_quantizers(self) -> FunctionalScope:
        return self.functional_scope

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        scope = self.functional_scope
        scope.run.check_finished()  # ops that are float again would not ask
        if scope.name or torch.compiler.is_compiling():
            return _in_scope(self, scope, args, kwargs)
        awaited.begin(scope.run)
        output = _in_scope(self, scope, args, kwargs)
        awaited.end(scope.run)
        return output


def _in_scope(module: Any, scope: FunctionalScope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    forward = float_class(module).forward
    if scope.run.phase == "bypass":
        return forward(module, *args, **kwargs)
    if scope.before_first is not None:
        scope.before_first(module, args, kwargs)
        scope.before_first = None
    if not (scope.active or scope.run.read_by_code):
        return forward(module, *args, **kwargs)
    if torch.compiler.is_compiling():
        mode = FunctionalMode(scope)
        with mode:
            output = forward(module, *args, **kwargs)
        if scope.active:
            mode.check_order()
        return output
    return _uncompiled(_in_mode)(forward, scope, module, args, kwargs)


def _in_mode(forward: Any, scope: FunctionalScope, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode = _innermost_mode()
    if not isinstance(mode, FunctionalMode):
        with FunctionalMode(scope):
            return forward(module, *args, **kwargs)
    # Every active mode sees every function: one that changes its scope, not one for each scope around the call.
    outer, mode.scope = mode.scope, scope
    try:
        return forward(module, *args, **kwargs)
    finally:
        mode.scope = outer


def _innermost_mode() -> TorchFunctionMode | None:
    depth = torch._C._len_torch_function_stack()
    mode: TorchFunctionMode | None = torch._C._get_function_stack_at(depth - 1) if depth else None
    return mode


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, kept from torch.compile as a whole.

    Where a scope cannot be compiled in one graph it runs as plain Python: pieces compiled under an active mode
    would call it from places that nobody wrote.
    """
    if "torch._dynamo" not in sys.modules:  # importing it takes a second; without it nothing compiles
        return function
    return _disabled(function)


@cache
def _disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    disabled: Callable[..., Any] = torch.compiler.disable(function)
    return disabled


class FloatModule(Swapped):
    """Mixin of a module that is an op of its own and stays float: the functions inside it are not ops."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return float_class(self).forward(self, *args, **kwargs)  # type: ignore[arg-type]
