"""What a capability lists and the library cannot quantize."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from subbyte.capability.op_types import implemented_forms
from subbyte.capability.schema import ANY, TENSORS, Capability, OpCapability
from subbyte.capability.source import Place
from subbyte.dtypes import dtype
from subbyte.errors import listing
from subbyte.spec import QuantMode

_NO_FLOAT16 = "Subbyte does not run {} in 16 bits; remove it from the list (it stays in fp32, where that is listed)"
# Ops with parameters that no fusion makes part of the op before them. Others are folded, or only map its values.
_UNFUSED = re.compile(r"(?!BatchNorm[123]d).*norm(\dd)?|prelu", re.IGNORECASE)


@dataclass(frozen=True)
class Promise:
    """An entry of a capability that nothing implements.

    Args:
        op_type: as in `GroupNorm`.
        place: the file and line of the entry.
        problem: what the entry lists and what is implemented instead.
        refused: whether a model that contains such an op is refused.
    """

    op_type: str
    place: Place
    problem: str
    refused: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def broken_promises(capability: Capability) -> list[Promise]:
    """Return the first entry of each op type that lists something that nothing implements.

    Entries are read in this order: sections, constraints, lists of float types, fusions.
    """
    found: dict[str, Promise] = {}
    lists = (_of_sections, _of_constraints, _of_floats, _of_fusions)
    for promise in (promise for list_of in lists for promise in list_of(capability)):
        found.setdefault(promise.op_type, promise)
    return list(found.values())


def _of_sections(capability: Capability) -> Iterator[Promise]:
    for section, modes in capability.sections.items():
        for mode, ops in modes.items():
            for op_type, entry in ops.items():
                if problem := _problem(op_type, mode, entry):
                    place = capability.places.get((section, mode, op_type), entry.place)
                    yield Promise(op_type, place, f"{section}, {mode}, {op_type}: {problem}")


def _of_floats(capability: Capability) -> Iterator[Promise]:
    for name in (name for name in capability.floats if dtype(name).is_half):
        for op_type in capability.floats[name]:
            if op_type != ANY and not implemented_forms(op_type):
                place = capability.list_places.get(name, Place(capability.source))
                yield Promise(op_type, place, f"{name}, {op_type}: {_NO_FLOAT16.format(op_type)}", refused=False)


def _of_constraints(capability: Capability) -> Iterator[Promise]:
    for constraint in capability.constraints:
        for op_type in constraint.op if constraint.precision != "fp32" else ():
            if not implemented_forms(op_type):
                problem = f"Subbyte cannot run {op_type} in any precision but fp32; remove it from the constraint"
                yield Promise(
                    op_type, constraint.place, f"constraint {constraint.precision!r}: {problem}", refused=False
                )


def _of_fusions(capability: Capability) -> Iterator[Promise]:
    place = capability.list_places.get("fusions", Place(capability.source))
    for first, *others in capability.fusions:
        apart = [op_type for op_type in others if _UNFUSED.fullmatch(op_type)]
        for op_type in [*([] if implemented_forms(first) else [first]), *apart]:
            problem = f"Subbyte runs {op_type} as an op of its own; remove the fusion"
            yield Promise(op_type, place, f"fusions, [{', '.join([first, *others])}]: {problem}", refused=False)


def _problem(op_type: str, mode: QuantMode, entry: OpCapability) -> str:
    forms = implemented_forms(op_type)
    if not forms:
        return (
            f"Subbyte has no quantized {op_type}; remove the entry (an op such as ReLU or MaxPool2d runs on the values "
            "that it gets and needs none), or implement the op with register_module"
        )
    tensors = forms.get("static" if mode == "quant_aware" else mode)
    if tensors is None:
        return f"Subbyte quantizes {op_type} in {listing(forms)} mode only; remove the entry"
    listed = {name for name in TENSORS if entry.tensor(name) is not None}
    if listed - tensors:
        return (
            f"Subbyte quantizes no {listing(listed - tensors)} of {op_type} in this mode (it quantizes: "
            f"{listing(tensors)}); remove {listing(listed - tensors)} from the entry"
        )
    if "weight" in tensors - listed:
        return f"Subbyte does not quantize the activation of {op_type} alone; list a weight too"
    return ""
