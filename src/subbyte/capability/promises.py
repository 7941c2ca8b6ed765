"""What a capability lists and the library cannot quantize."""

from collections.abc import Iterator
from dataclasses import dataclass

from subbyte.capability.op_types import implemented_forms
from subbyte.capability.schema import ANY, TENSORS, Capability, OpCapability
from subbyte.capability.source import Place
from subbyte.dtypes import dtype
from subbyte.errors import listing
from subbyte.spec import QuantMode

_NO_FLOAT16 = "Subbyte does not run {} in 16 bits; remove it from the list (it stays in fp32, where that is listed)"


@dataclass(frozen=True)
class Promise:
    """An entry of a capability that nothing implements.

    Args:
        op_type: as in `GroupNorm`.
        place: the file and line of the entry.
        problem: what the entry lists and what is implemented instead.
        applies: whether the entry applies to every op of the type, so that a model that contains one is refused.
    """

    op_type: str
    place: Place
    problem: str
    applies: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def broken_promises(capability: Capability) -> list[Promise]:
    """Return the first entry of each op type that lists a mode, a tensor or a float type that nothing implements."""
    found: dict[str, Promise] = {}
    for promise in (*_of_sections(capability), *_of_floats(capability)):
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
                yield Promise(op_type, place, f"{name}, {op_type}: {_NO_FLOAT16.format(op_type)}", applies=False)


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
