"""What a quantized model learns of its ops, forward by forward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from subbyte.adaptor.pytorch.attach import attach
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.discovery import discover
from subbyte.adaptor.pytorch.state import QuantizationState
from subbyte.spec import OpInfo, TuneConfig

Resolver = Callable[[Sequence[OpInfo]], TuneConfig]


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
        finally:
            self.state.run.phase = phase
        if functions_only:  # modules stay as they are: a BatchNorm that was not folded runs by itself
            found.ops = {name: replace(op, norm="") for name, op in found.ops.items()}
        new = self.state.graph.merge(found)
        self._configure(new)
        ops = self.state.graph.ops
        attach(model, self.state, [name for name in new if not functions_only or ops[name].kind == "function"])
        return bool(new)

    def before_first(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the functional ops of a model that was quantized without data."""
        self.learn(model, Batch(args, kwargs), functions_only=True)
        self.state.train(model.training)

    def _configure(self, new: Sequence[str]) -> None:
        """Add to the configuration what newly found ops get; what is configured stays."""
        state = self.state
        resolved = self.resolve([op.info for op in state.graph if op.quantizable])
        keys = [key for name in new if (key := state.graph.ops[name].info.key) not in state.config.op]
        added = {key: resolved.op[key] for key in keys if key in resolved.op}
        sources = {key: resolved.sources[key] for key in added if key in resolved.sources}
        config, known = state.config, dict(state.config.sources)
        state.config = replace(config, op={**config.op, **added}, sources={**known, **sources})
