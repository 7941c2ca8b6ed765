"""Pure tensor functions: quantize, dequantize, fake-quantize, pack, and the arithmetic on codes."""

from subbyte.numerics.blocks import block_axis, expand, scale_shape, to_blocks
from subbyte.numerics.definition import is_same_definition
from subbyte.numerics.gradient_way import wants_gradient, with_gradient_way
from subbyte.numerics.integer_first import EXACT_IN_FP32, accumulator, as_dtype, rescale, without_autocast
from subbyte.numerics.learned import Learned, learned_fake_quantize, learned_sum
from subbyte.numerics.learned_convolution import Geometry, learned_convolution
from subbyte.numerics.neighbours import neighbours
from subbyte.numerics.packing import pack, packed_size, unpack
from subbyte.numerics.param_checks import params_problem
from subbyte.numerics.quantize import code_dtype, dequantize, fake_quantize, quantize, quantize_pack
from subbyte.numerics.quantized_tensor import QuantizedTensor
from subbyte.numerics.rectify import rectify
from subbyte.numerics.schemes import (
    Affine,
    Codebook,
    Scheme,
    affine_arguments,
    affine_snap,
    is_built_in_affine,
    register_scheme,
    registered_schemes,
    scale_limits,
    scheme_of,
    stored_dtype,
    stored_scale,
)
from subbyte.numerics.sqnr import Loss, sqnr

__all__ = [
    "EXACT_IN_FP32",
    "Affine",
    "Codebook",
    "Geometry",
    "Learned",
    "Loss",
    "QuantizedTensor",
    "Scheme",
    "accumulator",
    "affine_arguments",
    "affine_snap",
    "as_dtype",
    "block_axis",
    "code_dtype",
    "dequantize",
    "expand",
    "fake_quantize",
    "is_built_in_affine",
    "is_same_definition",
    "learned_convolution",
    "learned_fake_quantize",
    "learned_sum",
    "neighbours",
    "pack",
    "packed_size",
    "params_problem",
    "quantize",
    "quantize_pack",
    "register_scheme",
    "rectify",
    "registered_schemes",
    "rescale",
    "without_autocast",
    "scale_shape",
    "scale_limits",
    "scheme_of",
    "sqnr",
    "stored_dtype",
    "stored_scale",
    "to_blocks",
    "unpack",
    "wants_gradient",
    "with_gradient_way",
]
