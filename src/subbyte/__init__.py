"""Subbyte: quantization below eight bits for PyTorch."""

from subbyte.adaptor.pytorch.kernels import use_kernels
from subbyte.algorithms import RecoveryMethod, register_algorithm
from subbyte.calibration import quantize_tensor
from subbyte.capability import Capability, load_capability
from subbyte.config import (
    AccuracyCriterion,
    PostTrainingQuantConfig,
    QuantizationAwareTrainingConfig,
    TuningCriterion,
)
from subbyte.dtypes import DataType, dtype, register_dtype
from subbyte.errors import (
    CalibrationError,
    CapabilityError,
    CheckpointError,
    ConfigError,
    DataTypeError,
    EvaluationError,
    KernelError,
    LostSignWarning,
    ModelError,
    RecoveryError,
    SubbyteError,
    TrainingError,
    TuningError,
    UnimplementedOpWarning,
    UnseenOpError,
    UnsupportedOpWarning,
    UnusedRuleWarning,
)
from subbyte.export.checkpoint import load, save
from subbyte.export.exchange import export_checkpoint, import_checkpoint
from subbyte.numerics import QuantizedTensor, Scheme, register_scheme
from subbyte.quantization import (
    convert,
    fit,
    prepare,
    prepare_qat,
    quantize,
    query_fw_capability,
    train,
    tune,
    tuning_result,
    weights,
)
from subbyte.report import Comparison, compare, explain, summary
from subbyte.spec import OpConfig, QuantParams, TensorSpec, TuneConfig
from subbyte.training import Distillation, Gradient, TrainingPlan, TrainingResult, TrainingRules, register_gradient
from subbyte.tuning import TuneResult, register_objective, register_strategy

__all__ = [
    # the job
    "quantize", "tune", "tuning_result", "TuneResult", "prepare", "prepare_qat", "train", "convert", "fit", "save",
    "load", "summary", "explain", "weights", "use_kernels", "compare", "Comparison",
    "export_checkpoint", "import_checkpoint",
    # data types and tensors
    "DataType", "dtype", "register_dtype", "QuantizedTensor", "quantize_tensor",
    # what is asked, and what can be
    "Capability", "load_capability", "query_fw_capability", "OpConfig", "PostTrainingQuantConfig",
    "QuantizationAwareTrainingConfig", "TrainingRules", "TrainingPlan", "TrainingResult", "Distillation", "QuantParams",
    "TensorSpec", "TuneConfig", "AccuracyCriterion", "TuningCriterion",
    # open registries
    "Gradient", "RecoveryMethod", "Scheme", "register_algorithm", "register_gradient",
    "register_objective", "register_scheme", "register_strategy",
    # errors
    "SubbyteError", "CalibrationError", "CapabilityError", "CheckpointError", "ConfigError", "DataTypeError",
    "EvaluationError", "KernelError", "LostSignWarning", "ModelError", "RecoveryError", "TrainingError", "TuningError",
    "UnimplementedOpWarning", "UnseenOpError", "UnsupportedOpWarning", "UnusedRuleWarning",
]  # fmt: skip
__version__ = "0.1.0"
