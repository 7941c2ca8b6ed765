"""What operators can do: the YAML schema, its loader and merge, the built-in files."""

from subbyte.capability.build import DEFAULT
from subbyte.capability.loader import built_in_capabilities, load_capability
from subbyte.capability.op_types import Forms, implemented_forms, register_op_type
from subbyte.capability.promises import Promise, broken_promises
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
    "DEFAULT",
    "FIELDS",
    "TENSORS",
    "Capability",
    "Constraint",
    "Forms",
    "Located",
    "OpCapability",
    "Place",
    "Promise",
    "Shorthand",
    "TensorCapability",
    "base_name",
    "broken_promises",
    "built_in_capabilities",
    "check_name",
    "derived_ranges",
    "implemented_forms",
    "load_capability",
    "parse_shorthand",
    "read_yaml",
    "register_op_type",
]
