"""`subbyte dtypes`: the data types there are."""

from rich.table import Table

from subbyte.capability import load_capability
from subbyte.dtypes import DataType, registered_dtypes


def dtype_table(capability: str) -> Table:
    """A row for each registered type, those of a capability file among them.

    Raises:
        CapabilityError: the file is wrong.
    """
    load_capability(capability)
    table = Table(title="data types")
    for heading in ("name", "kind", "bits", "values", "default algorithm"):
        table.add_column(heading, justify="right" if heading == "bits" else "left", overflow="fold")
    for data_type in registered_dtypes().values():
        algorithm = "-" if data_type.is_float else data_type.algorithm
        table.add_row(data_type.name, data_type.kind, str(data_type.bits), values_of(data_type), algorithm)
    return table


def values_of(data_type: DataType) -> str:
    """`-8..7` of an integer type, `{-1, 0, 1}` of a codebook."""
    if data_type.values is not None:
        return "{" + ", ".join(f"{value:.4g}" for value in data_type.values) + "}"
    return "not quantized" if data_type.is_float else f"{data_type.qmin}..{data_type.qmax}"
