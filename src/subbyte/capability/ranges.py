"""What a capability comes to, as rows: which codes each tensor of each op type would run in."""

from typing import Any

from subbyte.capability.schema import ANY, TENSORS, Capability, OpCapability, TensorCapability
from subbyte.dtypes import dtype, registered_dtypes


def derived_ranges(capability: Capability) -> list[dict[str, Any]]:
    """One row for each section, mode, op type, tensor and data type.

    Returns:
        Rows with `section`, `mode`, `op_type`, `tensor`, `dtype`, `bits`, `qmin` and `qmax` (the range of
        codes), `values` (the table of a codebook, else None), `default` (whether it is the list's first),
        and `accumulator`. `*` in a list stands for the registered types that no section names.
    """
    unnamed = _unnamed(capability)
    rows = []
    for section, modes in capability.sections.items():
        for mode, ops in modes.items():
            for op_type, entry in ops.items():
                head = {"section": section, "mode": mode, "op_type": op_type}
                rows += [head | row for row in _op_rows(entry, unnamed)]
    return rows


def _op_rows(entry: OpCapability, unnamed: list[str]) -> list[dict[str, Any]]:
    rows = []
    for tensor in TENSORS:
        lists = entry.tensor(tensor)
        for name in _expanded(lists, unnamed) if lists else ():
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


def _expanded(lists: TensorCapability, unnamed: list[str]) -> list[str]:
    named = [name for name in lists.dtype if name != ANY]
    return named + (unnamed if ANY in lists.dtype else [])


def _unnamed(capability: Capability) -> list[str]:
    entries = [entry for modes in capability.sections.values() for ops in modes.values() for entry in ops.values()]
    lists = [entry.tensor(name) for entry in entries for name in TENSORS]
    named = {name for tensor in lists if tensor is not None for name in tensor.dtype}
    return [name for name, known in registered_dtypes().items() if not known.is_float and name not in named]
