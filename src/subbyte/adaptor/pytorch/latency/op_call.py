"""What each op of a model is called with in one forward."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.comparison.following import FloatMode, Follower, copies
from subbyte.adaptor.pytorch.functional_op import Function, FunctionalOp
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.unchanged import unchanged


@dataclass(frozen=True)
class OpCall:
    """One call of an op; tensors are its own.

    Args:
        args, kwargs: as given.
        op: of a function, what it is.
        function: that is called; None where it is a module.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    op: FunctionalOp | None = None
    function: Function | None = None

    def __str__(self) -> str:
        """The shapes and types of tensors, other arguments as they are."""
        given = tree_map(_shown, (self.args, dict(self.kwargs)))
        return f"{given[0]} {given[1] or ''}".replace("'", "").strip()

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]


def _shown(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return str(leaf) if isinstance(leaf, bool | int | float | str | type(None)) else type(leaf).__name__


def calls_of_ops(model: nn.Module, graph: Graph, names: Set[str], batch: Batch) -> dict[str, list[OpCall]]:
    """The calls that ops get in one forward of a float model, which is left as it was.

    Args:
        model: float.
        graph: its ops.
        names: of those that are wanted.
        batch: the inputs of the forward.

    Returns:
        by the op's name; ops that the forward does not reach are left out.
    """
    follower = Follower(model, graph)
    found: dict[str, list[OpCall]] = {}

    def left(name: str, args: Sequence[Any], output: Any) -> None:
        found.setdefault(name, []).append(OpCall(copies(tuple(args)), {}))

    def called(name: str, op: FunctionalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in names:
            found.setdefault(name, []).append(OpCall(copies(args), copies(kwargs), op, function))
        return function(*args, **kwargs)

    modules = {name for name in names if graph.ops[name].kind == "module"}
    with unchanged(model), follower.following(modules, left), FloatMode(follower, called):
        batch.copied().run(model)
    return found
