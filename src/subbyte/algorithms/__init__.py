"""Methods that recover accuracy without training: one small file each."""

from subbyte.algorithms import adaround, batch_norm, bias_correction, clip, gptq, hqq, reconstruct  # noqa: F401  (they register themselves)
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.recover import recover
from subbyte.algorithms.registry import as_methods, register_algorithm, registered_methods

__all__ = ["RecoveryMethod", "Stage", "as_methods", "recover", "register_algorithm", "registered_methods"]
