"""What one or more recorded forwards tell of a model."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from subbyte.spec import OpInfo, Position, Role


@dataclass(frozen=True)
class Call:
    """One place at which an op is called.

    Args:
        site: where in the code of the module that calls.
        producers: for each slot what made the value, as a name that is stable from forward to forward; None
            where nothing recorded did (a parameter, a constant).
        quantizable: whether the values are of the kind that is quantized here (see FunctionalOp.needs_all).
    """

    site: str
    producers: tuple[str | None, ...]
    quantizable: bool = True


@dataclass(frozen=True)
class Op:
    """One operator as recorded.

    Args:
        name, type, role, depthwise, product_positions: as in OpInfo.
        kind: `module`, or `function` for a torch function called by a module's code.
        scope: of a function, the module whose code calls it.
        calls: where it is called; none for a module that no forward reached.
        positions: `first`, `last`.
        macs: multiply-accumulates for one sample.
        norm: the BatchNorm that follows it and nothing else, or empty.
        fused: whether it is computed as part of the op before it (see `fuse`).
        parameters: of a function that multiplies by parameters, their names.
        unfollowed: of a function, whether it reads values of unknown origin, which are not quantized.
        consumers: as in OpInfo.
    """

    name: str
    type: str
    role: Role
    kind: Literal["module", "function"]
    scope: str = ""
    calls: tuple[Call, ...] = ()
    positions: frozenset[Position] = frozenset()
    depthwise: bool = False
    macs: int = 0
    norm: str = ""
    fused: bool = False
    parameters: tuple[str, ...] = ()
    unfollowed: bool = False
    product_positions: frozenset[Position] = frozenset()
    consumers: frozenset[str] = frozenset()

    @property
    def info(self) -> OpInfo:
        return OpInfo(
            self.name,
            self.type,
            self.role,
            self.positions,
            self.depthwise,
            self.product_positions,
            quantizable=self.quantizable,
            consumers=self.consumers if self.calls else None,
        )

    @property
    def quantizable(self) -> bool:
        """Whether it is an op that configuration speaks of."""
        return not self.fused and (self.kind == "module" or any(call.quantizable for call in self.calls))

    def joined(self, other: "Op") -> "Op":
        """This op with what another forward adds to it."""
        known = {call.site for call in self.calls}
        quantizable = {call.site for call in other.calls if call.quantizable}
        # A loop comes to one place with values of several kinds: one of the quantized kind decides.
        calls = [replace(call, quantizable=call.quantizable or call.site in quantizable) for call in self.calls]
        return replace(
            self,
            calls=(*calls, *(call for call in other.calls if call.site not in known)),
            positions=self.positions | other.positions,
            product_positions=self.product_positions | other.product_positions,
            macs=self.macs or other.macs,
            norm=self.norm if self.calls else other.norm,
            fused=self.fused if self.calls else other.fused,
            parameters=tuple(sorted({*self.parameters, *other.parameters})),
            unfollowed=self.unfollowed or other.unfollowed,
            consumers=self.consumers | other.consumers,
        )


@dataclass
class Graph:
    """What was recorded of a model.

    Args:
        ops: by name, in the order they first ran.
        order: for each scope the order of its functions.
        read_by_code: the weighted ops whose weight the model's own code reads, as in `F.linear(x, table.weight)`.
        readers: the modules whose code that is.
        functions: the functions that run and are no ops, by name, with the module that first calls each.
    """

    ops: dict[str, Op] = field(default_factory=dict)
    order: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    read_by_code: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    functions: dict[str, str] = field(default_factory=dict)

    def merge(self, other: "Graph") -> list[str]:
        """Take in another forward's recording; returns the names of ops that are new or have new calls."""
        changed = []
        for name, op in other.ops.items():
            before = self.ops.get(name)
            self.ops[name] = op if before is None else before.joined(op)
            if before is None or len(self.ops[name].calls) > len(before.calls):
                changed.append(name)
        for scope, sites in other.order.items():
            self.order.setdefault(scope, sites)
        self.read_by_code |= other.read_by_code
        self.readers |= other.readers
        self.functions = other.functions | self.functions
        return changed

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops.values())

    def sites(self) -> Iterator[str]:
        """The places of all calls."""
        return (call.site for op in self for call in op.calls)
