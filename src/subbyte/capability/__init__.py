"""What operators can do: the YAML schema, its loader and merge, the built-in files."""

from subbyte.capability.loader import built_in_capabilities, load_capability
from subbyte.capability.op_types import register_op_type
from subbyte.capability.ranges import derived_ranges
from subbyte.capability.registries import check_name
from subbyte.capability.schema import (
    ANY,
    FIELDS,
    TENSORS,
    Capability,
    Constraint,
    OpCapability,
    TensorCapability,
    base_name,
)
from subbyte.capability.shorthand import Shorthand, parse_shorthand
from subbyte.capability.source import Located, Place, read_yaml

__all__ = [
    "ANY",
    "FIELDS",
    "TENSORS",
    "Capability",
    "Constraint",
    "Located",
    "OpCapability",
    "Place",
    "Shorthand",
    "TensorCapability",
    "base_name",
    "built_in_capabilities",
    "check_name",
    "derived_ranges",
    "load_capability",
    "parse_shorthand",
    "read_yaml",
    "register_op_type",
]
