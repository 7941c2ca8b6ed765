"""The PyTorch adaptor behind the interface that configuration and tuning see."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from subbyte.adaptor.base import Adaptor
from subbyte.adaptor.pytorch.computed_weights import Sample
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.coverage import check_promises
from subbyte.adaptor.pytorch.discovery import discover
from subbyte.adaptor.pytorch.float_model import check_float
from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.prepare import prepare, quantize, static_graph
from subbyte.adaptor.pytorch.prepare_again import prepare_again
from subbyte.adaptor.pytorch.splitting import split_batches
from subbyte.adaptor.pytorch.tunable import PyTorchTunableModel
from subbyte.capability import FIELDS, TENSORS, Capability, OpCapability
from subbyte.config import resolve
from subbyte.spec import OpInfo, TuneConfig


class PyTorchAdaptor(Adaptor):
    """Quantizes torch.nn.Module, as one capability allows."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability

    def operators(self, model: nn.Module, data: Any = None) -> Sequence[OpInfo]:
        check_float(model)
        graph = static_graph(model) if data is None else discover(copied(model), next(iter(split_batches(model, data))))
        return [op.info for op in graph if op.quantizable]

    def query_fw_capability(self, model: nn.Module, data: Any = None) -> dict[str, Any]:
        opwise = {op.key: self.configurations(op.type) for op in self.operators(model, data)}
        return {
            "opwise": opwise,
            "optypewise": {op_type: allowed for (_, op_type), allowed in opwise.items()},
        }

    def configurations(self, op_type: str) -> list[dict[str, Any]]:
        """What an op type can have: for each mode and precision section, the list of every field of each tensor."""
        return [
            {"precision": section, "quant_mode": mode} | _lists(entry)
            for mode in self.capability.modes(op_type)
            for section, entry in self.capability.entries(op_type, mode).items()
        ]

    def tunable(self, model: nn.Module, request: Any, data: Any = None, first_last: str | None = None
                ) -> PyTorchTunableModel:  # fmt: skip
        return PyTorchTunableModel(model, self.capability, request, data, first_last)

    def prepare(self, model: nn.Module, config: Any, data: Any = None, first_last: str | None = None) -> nn.Module:
        """A prepared and calibrated copy, from any form of request."""
        return prepare(model, _Resolver(self.capability, config, first_last), data)

    def prepare_again(self, model: nn.Module, config: Any, sample: Sample, first_last: str | None) -> None:
        """Give a prepared model another configuration, in place."""
        prepare_again(model, _Resolver(self.capability, config, first_last), sample)

    def quantize(self, model: nn.Module, tune_config: TuneConfig, data: Any = None) -> nn.Module:
        return self.quantize_as(model, tune_config, data)

    def quantize_as(self, model: nn.Module, config: Any, data: Any = None, first_last: str | None = None) -> nn.Module:
        """A converted copy, from any form of request."""
        return quantize(model, _Resolver(self.capability, config, first_last), data)


def _lists(entry: OpCapability) -> dict[str, dict[str, list[str]]]:
    tensors = {name: entry.tensor(name) for name in TENSORS}
    return {
        name: {field: list(capability.options(field)) for field in FIELDS}
        for name, capability in tensors.items()
        if capability is not None
    }


@dataclass(frozen=True)
class _Resolver:
    """A request that waits for the ops it speaks of (an object, not a closure: models are pickled)."""

    capability: Capability
    config: Any
    first_last: str | None

    @property
    def fusions(self) -> tuple[tuple[str, ...], ...]:
        return self.capability.fusions

    @property
    def strict(self) -> bool:
        return self.capability.strict

    def check(self, graph: Graph, model: nn.Module, /) -> None:
        check_promises(self.capability, graph, model)

    def __call__(self, ops: Sequence[OpInfo], /) -> TuneConfig:
        return resolve(self.capability, ops, self.config, self.first_last)
