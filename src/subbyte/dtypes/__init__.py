"""Data types: what they are, and which there are."""

from subbyte.dtypes.data_type import DataType
from subbyte.dtypes.registry import all_or_none, dtype, register_dtype, registered_dtypes

__all__ = ["DataType", "all_or_none", "dtype", "register_dtype", "registered_dtypes"]
