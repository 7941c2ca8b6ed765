"""Pure tensor functions: quantize, dequantize, fake-quantize, pack, and the arithmetic on codes."""

from subbyte.numerics.blocks import block_axis, expand, scale_shape, to_blocks
from subbyte.numerics.definition import is_same_definition
from subbyte.numerics.integer_first import EXACT_IN_FP32, accumulator, as_dtype, rescale, without_autocast
from subbyte.numerics.packing import pack, packed_size, unpack
from subbyte.numerics.quantize import code_dtype, dequantize, fake_quantize, quantize
from subbyte.numerics.quantized_tensor import QuantizedTensor
from subbyte.numerics.schemes import (
    Affine,
    Codebook,
    Scheme,
    affine_snap,
    register_scheme,
    registered_schemes,
    scale_limits,
    scheme_of,
    stored_scale,
)
from subbyte.numerics.sqnr import Loss, sqnr

__all__ = [
    "EXACT_IN_FP32",
    "Affine",
    "Codebook",
    "Loss",
    "QuantizedTensor",
    "Scheme",
    "accumulator",
    "affine_snap",
    "as_dtype",
    "block_axis",
    "code_dtype",
    "dequantize",
    "expand",
    "fake_quantize",
    "is_same_definition",
    "pack",
    "packed_size",
    "quantize",
    "register_scheme",
    "registered_schemes",
    "rescale",
    "without_autocast",
    "scale_shape",
    "scale_limits",
    "scheme_of",
    "sqnr",
    "stored_scale",
    "to_blocks",
    "unpack",
]
