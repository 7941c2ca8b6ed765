// Sums of products into values.
#pragma once

#include <stdint.h>

namespace subbyte {

struct RescaleKernels {
  // sums[i] = sums[i] * scales[i * stride] + biases[i * stride], as two roundings. A stride is 0 or 1.
  void (*rescale)(float* sums, int64_t count, const float* scales, const float* biases, int64_t stride);
};

extern const RescaleKernels reference_rescale, avx2_rescale, avx512_rescale;

}  // namespace subbyte
