"""What of a model a capability must cover: its ops, and the modules and functions that always stay in float."""

from collections.abc import Iterable, Iterator

from torch import nn

from subbyte.adaptor.pytorch.graph import Graph
from subbyte.adaptor.pytorch.modules import handler_of
from subbyte.adaptor.pytorch.swap import float_class
from subbyte.adaptor.pytorch.trace import NORMS
from subbyte.capability import Capability, broken_promises
from subbyte.errors import CapabilityError
from subbyte.spec import OpInfo


def op_infos(graph: Graph, model: nn.Module, parameters: Iterable[str]) -> list[OpInfo]:
    """Return the ops of a model as configuration sees them.

    Ops that are not quantizable come last: functions that multiply by a parameter, modules of torch.nn with parameters
    but without a quantized form, BatchNorms that are not folded, and parameters that the model's own code reads.

    Args:
        graph: as recorded.
        model: float or prepared.
        parameters: the names of the float model's parameters.
    """
    multiplying = [op.info for op in graph if not op.quantizable and not op.fused and (op.macs or op.parameters)]
    folded = {op.norm for op in graph}
    modules = [
        OpInfo(name, float_class(module).__name__, "other", quantizable=False)
        for name, module in model.named_modules()
        if _computes_in_float(module) and name not in folded
    ]
    holders = {info.name for info in modules}
    read = [
        OpInfo(name, "Parameter", "other", quantizable=False)
        for name in _read_by_code(graph, parameters)
        if name.rpartition(".")[0] not in holders
    ]
    return [*(op.info for op in graph if op.quantizable), *multiplying, *modules, *read]


def parameter_claims(graph: Graph, parameters: Iterable[str]) -> dict[str, set[str]]:
    """Assign parameters to ops, each to one: a module op has its own and its BatchNorm's, a function what it reads."""
    holders = {holder: op.name for op in graph if op.kind == "module" for holder in (op.name, op.norm or op.name)}
    readers = {name: op.name for op in graph if op.kind == "function" for name in op.parameters}
    claims: dict[str, set[str]] = {op.name: set() for op in graph}
    for name in parameters:
        owner = holders.get(name.rpartition(".")[0], readers.get(name))
        if owner is not None:
            claims[owner].add(name)
    return claims


def _read_by_code(graph: Graph, parameters: Iterable[str]) -> list[str]:
    """Return the parameters that belong to no op; none without a recorded forward, which shows what functions read."""
    if not any(op.calls for op in graph):
        return []
    names = list(parameters)
    claimed = set[str]().union(*parameter_claims(graph, names).values())
    return [name for name in names if name not in claimed]


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
