"""What a capability comes to, as rows: which codes each tensor of each op type would run in."""

from typing import Any

from subbyte.capability.schema import ANY, TENSORS, Capability, OpCapability, TensorCapability
from subbyte.dtypes import dtype, registered_dtypes
from subbyte.spec import QuantMode


def derived_ranges(capability: Capability) -> list[dict[str, Any]]:
    """One row for each section, mode, op type, tensor and data type.

    Returns:
        Rows with `section`, `mode`, `op_type`, `tensor`, `dtype`, `bits`, `qmin` and `qmax` (the range of
        codes), `values` (the table of a codebook, else None), `default` (whether it is the list's first),
        and `accumulator`. `*` in a list stands for the registered types that no section names.
    """
    rows = []
    for section, modes in capability.sections.items():
        for mode, ops in modes.items():
            for op_type, entry in ops.items():
                head = {"section": section, "mode": mode, "op_type": op_type}
                rows += [head | row for row in _op_rows(capability, entry, mode, op_type)]
    return rows


def _op_rows(capability: Capability, entry: OpCapability, mode: QuantMode, op_type: str) -> list[dict[str, Any]]:
    rows = []
    for tensor in TENSORS:
        lists = entry.tensor(tensor)
        siblings = capability.siblings(op_type, mode, tensor)
        for name in _expanded(capability, lists, siblings) if lists else ():
            data_type = dtype(name)
            rows.append(
                {
                    "tensor": tensor,
                    "dtype": name,
                    "bits": data_type.bits,
                    "qmin": data_type.qmin,
                    "qmax": data_type.qmax,
                    "values": None if data_type.values is None else list(data_type.values),
                    "default": lists is not None and name == lists.dtype[0],
                    "accumulator": entry.accumulator,
                }
            )
    return rows


def _expanded(capability: Capability, lists: TensorCapability, siblings: list[TensorCapability]) -> list[str]:
    named = [name for name in lists.dtype if name != ANY]
    if ANY not in lists.dtype:
        return named
    known = [name for name in registered_dtypes() if name not in named]
    return named + [name for name in known if capability.allows(lists, siblings, "dtype", name)]
