"""Kernels: the `torch.ops.subbyte` operators, native where the package was built with a compiler.

Importing this defines them. What the native library implements runs there on CPU tensors; everything else, and other
devices, runs the PyTorch implementations beside each operator, which compute the same.
"""

from subbyte.kernels import (  # noqa: F401  (they define their operators)
    binary_conv2d,
    binary_linear,
    convolution,
    depthwise,
    embedding,
    float_convolution,
    float_linear,
    linear,
    packing,
    quantize,
    ranges,
    rescale,
)
from subbyte.kernels.isa import Isa, isas, use_isa, used_isa
from subbyte.kernels.library import Library, library

__all__ = ["Isa", "Library", "isas", "library", "use_isa", "used_isa"]
