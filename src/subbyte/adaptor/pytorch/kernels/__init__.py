"""Converted ops on packed codes."""

from subbyte.adaptor.pytorch.kernels.kernel_module import KernelModule
from subbyte.adaptor.pytorch.kernels.use_kernels import use_kernels

__all__ = ["KernelModule", "use_kernels"]
