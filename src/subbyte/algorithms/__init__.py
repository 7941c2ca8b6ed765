"""Methods that recover accuracy without training: one small file each."""

from subbyte.algorithms import (  # noqa: F401  (they register themselves)
    adaround,
    auto,
    awq,
    batch_norm,
    bias_correction,
    clip,
    equalize,
    gptq,
    hqq,
    reconstruct,
    rotate,
    smoothquant,
)
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.recover import check_recovery, recover
from subbyte.algorithms.registry import as_methods, register_algorithm, registered_methods

__all__ = [
    "RecoveryMethod",
    "Stage",
    "as_methods",
    "check_recovery",
    "recover",
    "register_algorithm",
    "registered_methods",
]
