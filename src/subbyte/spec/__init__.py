"""The plain data that every layer speaks: specs, configurations, parameters."""

from subbyte.spec.granularity import Granularity
from subbyte.spec.op import ACCUMULATORS, OpConfig, OpInfo, Position, QuantMode, Role
from subbyte.spec.quant_params import QuantParams
from subbyte.spec.tensor_spec import TensorSpec, check_keys
from subbyte.spec.tune_config import OpKey, TuneConfig

__all__ = [
    "ACCUMULATORS",
    "Granularity",
    "OpConfig",
    "OpInfo",
    "OpKey",
    "Position",
    "QuantMode",
    "QuantParams",
    "Role",
    "TensorSpec",
    "TuneConfig",
    "check_keys",
]
