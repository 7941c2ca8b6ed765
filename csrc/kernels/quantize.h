// Floats into codes.
#pragma once

#include <stdint.h>

namespace subbyte {

// How floats become codes, and codes signed bytes.
struct Affine {
  float scale;
  int32_t zero_point, low, high, shift;
};

struct QuantizeKernels {
  // clamp(round_half_even(x / scale) + zero_point, low, high) - shift; returns whether a NaN was among them.
  bool (*quantize)(const float* x, int64_t count, const Affine& affine, int8_t* codes);
};

extern const QuantizeKernels reference_quantize, avx2_quantize, avx512_quantize;

}  // namespace subbyte
