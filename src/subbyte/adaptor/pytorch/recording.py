"""What a quantized model learns of its ops, forward by forward."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from subbyte.adaptor.pytorch.attach import attach, detach, unfold_norm
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.coverage import op_infos
from subbyte.adaptor.pytorch.discovery import discover
from subbyte.adaptor.pytorch.functional_ops import FUNCTIONAL_TYPES
from subbyte.adaptor.pytorch.fusion import Fusions, fuse
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.state import QuantizationState, state_of
from subbyte.errors import CalibrationError, ConfigError
from subbyte.spec import OpConfig, OpInfo, OpKey, TuneConfig


class Resolver(Protocol):
    """From the ops that were found to what each gets."""

    @property
    def fusions(self) -> Fusions:
        """The sequences of op types that run as one."""
        ...

    @property
    def strict(self) -> bool:
        """Whether an op that could overflow its accumulator is refused."""
        ...

    def check(self, graph: Graph, model: nn.Module, /) -> None:
        """Raise CapabilityError if the model contains an op that the capability lists and nothing implements."""
        ...

    def __call__(self, ops: Sequence[OpInfo], /) -> TuneConfig: ...


@dataclass
class Recording:
    """Records forwards of a model that is prepared in part, and prepares what they add.

    Args:
        state: of the model.
        resolve: from ops to what each gets.
        names: the names of functional ops, given once and kept.
    """

    state: QuantizationState
    resolve: Resolver
    names: dict[tuple[str, str, str], str]

    def learn(self, model: nn.Module, batch: Batch, *, functions_only: bool = False) -> bool:
        """Record the path of a batch and prepare what is new on it; False when nothing is."""
        phase, self.state.run.phase = self.state.run.phase, "bypass"
        try:
            found = discover(model, batch, self.names)
            fuse(found, model, self.resolve.fusions)
            self.resolve.check(found, model)
        finally:
            self.state.run.phase = phase
        if functions_only:  # modules stay as they are: a BatchNorm that was not folded runs by itself
            found.ops = {name: replace(op, norm="") for name, op in found.ops.items()}
        ops = self.state.graph.ops
        unfolded = self._unfold_norms(model, found)
        unreached = {op.info.key for op in ops.values() if op.kind == "module" and not op.calls}
        new = self.state.graph.merge(found)
        self._configure(model, new, unreached)
        attach(model, self.state, [name for name in new if not functions_only or ops[name].kind == "function"])
        self.state.to(next(chain(model.parameters(), model.buffers()), torch.empty(0)).device)
        return bool(new or unfolded)

    def _unfold_norms(self, model: nn.Module, found: Graph) -> bool:
        """Where a path goes from an op to another BatchNorm than before, or to none, it leaves the op."""
        ops = self.state.graph.ops
        apart = [op.name for op in found if op.calls and op.name in ops and op.norm != ops[op.name].norm != ""]
        modules = [model.get_submodule(name) for name in apart]
        prepared = [module for module in modules if isinstance(module, PreparedWeighted)]
        for module in prepared:
            unfold_norm(self.state, module)
        return bool(prepared)

    def _configure(self, model: nn.Module, new: Sequence[str], unreached: Set[OpKey]) -> None:
        """Add to the configuration what newly found ops get, and what ones that no forward had reached get now.

        Raises:
            ConfigError: an op that was reached before should get something else: it is first or last on this path.
        """
        state = self.state
        resolved = self.resolve(op_infos(state.graph, model, state.float_parameters))
        changed = [key for key, given in state.config.op.items() if resolved.op.get(key, given) != given]
        for name, op_type in changed:
            op = state.graph.ops[name]
            read_in_float = op.role == "other" and resolved.op[name, op_type].is_unchanged  # on the new path alone
            if (name, op_type) not in unreached and not read_in_float:
                raise ConfigError(
                    f"op {name!r} is {' and '.join(sorted(op.positions | op.product_positions))} only on the path of a "
                    "later calibration batch; give a batch that takes that path first, or name the op's precision"
                )
            detach(model, state, name)
        keys = [key for name in new if (key := state.graph.ops[name].info.key) not in state.config.op] + changed
        added = {key: resolved.op[key] for key in keys if key in resolved.op}
        sources = {key: resolved.sources[key] for key in added if key in resolved.sources}
        config, known = state.config, dict(state.config.sources)
        state.config = replace(config, op={**config.op, **added}, sources={**known, **sources})


@dataclass(frozen=True)
class FoundLater:
    """What the functional ops of a model quantized without data get, once its first forward has shown them.

    Args:
        by_type: op type -> configuration; the types that stay float are left out.
    """

    by_type: Mapping[str, OpConfig]
    fusions: tuple[tuple[str, ...], ...] = ()
    strict: bool = False

    def check(self, graph: Graph, model: nn.Module, /) -> None:
        """The capability is not kept with the model."""

    def __call__(self, ops: Sequence[OpInfo], /) -> TuneConfig:
        return TuneConfig({op.key: self.by_type[op.type] for op in ops if op.quantizable and op.type in self.by_type})

    def before_first(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the model's first forward and quantize the functional ops on it."""
        state = state_of(model)
        try:
            Recording(state, self, {}).learn(model, Batch(args, kwargs), functions_only=True)
        except CalibrationError as error:  # of a forward, which here is the caller's own
            raise error.__cause__ or error from None
        state.found_later = None
        state.run.awaits_first = False
        state.train(model.training)


def functional_types() -> list[OpInfo]:
    """An op of each functional type, to ask what those that are found later will get."""
    return [OpInfo(f"{name} (found later)", name, op.role, imagined=True) for name, op in FUNCTIONAL_TYPES.items()]
