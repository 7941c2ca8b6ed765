"""Seeing the ops of a float model, and of the quantized one, under the names of the recording."""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.call_site import call_site
from subbyte.adaptor.pytorch.composites import COMPOSITES
from subbyte.adaptor.pytorch.functional_mode import FunctionalMode, FunctionalScope
from subbyte.adaptor.pytorch.functional_op import Function, FunctionalOp
from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_OPS
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.phase import Run
from subbyte.adaptor.pytorch.swap import positional
from subbyte.adaptor.pytorch.trace import NORMS

Place = tuple[str, str, str]  # of a functional op: the module whose code calls it, its type, where


class Follower:
    """Which module a forward is in.

    Args:
        model: float or quantized.
        graph: as recorded when it was quantized.
    """

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.ops = {op.name for op in graph if op.kind == "module"}
        self.functions: dict[Place, str] = {
            (op.scope, op.type, call.site): op.name for op in graph if op.kind == "function" for call in op.calls
        }
        self.stack: list[nn.Module] = []

    @property
    def is_in_op(self) -> bool:
        """Whether a module runs that is an op itself: the functions that it calls are none."""
        return bool(self.stack) and (self.names[self.stack[-1]] in self.ops or isinstance(self.stack[-1], NORMS))

    def function_name(self, op: FunctionalOp, function: Function) -> str:
        """The name of the functional op that is called; empty where it was not recorded."""
        scope = self.names[self.stack[-1]] if self.stack else ""
        return self.functions.get((scope, op.op_type, call_site(function.__name__)), "")

    @contextmanager
    def following(self, names: Set[str], leave: Callable[[str, tuple[Any, ...], Any], None]) -> Iterator[None]:
        """Meanwhile `leave` gets the name, the arguments and the output of each module of `names` that has run."""

        written_over: dict[nn.Module, tuple[Any, ...]] = {}

        def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.stack.append(module)
            if self.names[module] in names and getattr(module, "inplace", False):
                written_over[module] = copies(positional(module, args, kwargs))

        def left(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.stack.pop()
            name, kept = self.names[module], written_over.pop(module, None)
            if name in names and output is not None:  # None: it raised, and a caller may catch that
                leave(name, positional(module, args, kwargs) if kept is None else kept, output)

        handles = [module.register_forward_pre_hook(entered, with_kwargs=True) for module in self.names]
        # Before the model's own hooks: what those compute is the caller's code.
        options = {"with_kwargs": True, "prepend": True, "always_call": True}
        handles += [module.register_forward_hook(left, **options) for module in self.names]
        try:
            yield
        finally:
            self.stack.clear()
            for handle in handles:
                handle.remove()


def copies(given: Any) -> Any:
    """Arguments with tensors of their own: what is called may write into them."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, given)


class FloatMode(TorchFunctionMode):
    """Gives each functional op of a float model to `call`, which runs it.

    Args:
        follower: of the float model.
        call: takes the name, the op, the function and its arguments, and gives the function's output.
    """

    def __init__(self, follower: Follower, call: Callable[..., Any]) -> None:
        super().__init__()
        self.follower = follower
        self.call = call

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.follower.is_in_op:
            return function(*args, **kwargs)
        if function in COMPOSITES:
            with self:
                return COMPOSITES[function](*args, **kwargs)
        op = FUNCTIONAL_OPS.get(function)
        name = self.follower.function_name(op, function) if op is not None and op.inputs(args, kwargs) else ""
        return self.call(name, op, function, args, kwargs) if name else function(*args, **kwargs)


class QuantizedMode(FunctionalMode):
    """The mode of a quantized model that also gives the name and the output of each functional op to `leave`.

    Scopes set theirs on the mode that is active, so this one serves in place of theirs.
    """

    def __init__(self, follower: Follower, leave: Callable[[str, Any], None]) -> None:
        super().__init__(FunctionalScope("", Run()))
        self.follower = follower
        self.leave = leave

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in COMPOSITES and not self.scope.active and not self.follower.is_in_op:
            with self:
                return COMPOSITES[function](*args, **kwargs)
        op = FUNCTIONAL_OPS.get(function)
        is_op = op is not None and not self.follower.is_in_op and op.inputs(args, kwargs)
        output = super().__torch_function__(function, types, args, kwargs)
        name = self.follower.function_name(op, function) if op is not None and is_op else ""
        if name:
            self.leave(name, output)
        return output
