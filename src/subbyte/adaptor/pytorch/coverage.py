"""What of a model a capability must cover: its ops, and the modules and functions that always stay in float."""

from collections.abc import Iterator

from torch import nn

from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.modules import handler_of
from subbyte.adaptor.pytorch.swap import float_class
from subbyte.adaptor.pytorch.trace import NORMS
from subbyte.capability import Capability, broken_promises
from subbyte.errors import CapabilityError
from subbyte.spec import OpInfo


def op_infos(graph: Graph, model: nn.Module) -> list[OpInfo]:
    """Return the ops of a model as configuration sees them.

    Ops that are not quantizable come last: functions that multiply by a parameter, modules of torch.nn with parameters
    but without a quantized form, and BatchNorms that are not folded.
    """
    multiplying = [op.info for op in graph if not op.quantizable and not op.fused and (op.macs or op.parameters)]
    folded = {op.norm for op in graph}
    modules = [
        OpInfo(name, float_class(module).__name__, "other", quantizable=False)
        for name, module in model.named_modules()
        if _computes_in_float(module) and name not in folded
    ]
    return [*(op.info for op in graph if op.quantizable), *multiplying, *modules]


def _computes_in_float(module: nn.Module) -> bool:
    if isinstance(module, NORMS):
        return True
    is_torchs = float_class(module).__module__.startswith("torch.nn.modules.")
    return is_torchs and handler_of(module) is None and any(True for _ in module.parameters(recurse=False))


def check_promises(capability: Capability, graph: Graph, model: nn.Module) -> None:
    """Raise CapabilityError if the model contains an op that the capability lists and nothing implements."""
    broken = {promise.op_type: promise for promise in broken_promises(capability) if promise.refused}
    if not broken:
        return
    contained = {op_type: name for op_type, name in _op_types(graph, model) if op_type in broken}
    if contained:
        raise CapabilityError(
            "; ".join(f"{broken[op_type]} (the model contains op {name!r})" for op_type, name in contained.items())
        )


def _op_types(graph: Graph, model: nn.Module) -> Iterator[tuple[str, str]]:
    """Every name that a capability may have for an op of the model, with the op's name."""
    for op in graph:
        yield op.type, op.name
    for function, scope in graph.functions.items():
        yield function, f"{scope}.{function}".lstrip(".")
    for name, module in model.named_modules():
        for cls in float_class(module).__mro__ if handler_of(module) is None else ():
            yield cls.__name__, name
