"""What the files that a description extends name, and an overlay may have taken away."""

from collections.abc import Iterable, Iterator
from typing import Any

from subbyte.capability.schema import FIELDS, TENSORS, Slot, TensorCapability
from subbyte.capability.source import Located, Place

_PLACE = Place("what the file extends")


def named_below(trees: Iterable[Located]) -> dict[Slot, TensorCapability]:
    """Everything that the sections of extended descriptions name for a tensor of an op type in a mode.

    `*` is every registered name that no section names. Without this, what an overlay removes from a section
    would be such a name, and come back by way of `*`.

    Args:
        trees: not checked yet: what is wrong in them matters only where it is left after merging.
    """
    named: dict[Slot, dict[str, list[str]]] = {}
    for tree in trees:
        for section in _mappings(tree.get("capabilities")).values():
            for slot, lists in _slots(section):
                fields = named.setdefault(slot, {})
                for name in FIELDS:
                    fields.setdefault(name, []).extend(_texts(lists.get(name)))
    return {
        slot: TensorCapability(**{name: tuple(texts) for name, texts in fields.items()}, place=_PLACE)
        for slot, fields in named.items()
    }


def _slots(section: Located) -> Iterator[tuple[Slot, Located]]:
    modes = _mappings(section)
    if "static" in modes:  # quant_aware is static unless given
        modes["quant_aware"] = {**modes["static"], **modes.get("quant_aware", {})}
    for mode, ops in modes.items():
        for op_type, entry in _mappings(ops).items():
            for tensor, lists in _mappings(entry).items():
                if tensor in TENSORS:
                    yield (mode, op_type, tensor), lists


def _mappings(value: Any) -> dict[str, Any]:
    items = value.items() if isinstance(value, dict) else ()
    return {key: item for key, item in items if isinstance(item, dict)}


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]
