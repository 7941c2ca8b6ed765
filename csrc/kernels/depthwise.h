// A convolution of each channel by itself.
#pragma once

#include <stdint.h>

namespace subbyte {

//   y[c] = float(t[c]) * scales[c]  [+ bias[c]],  t[c] = sum over taps of (x[tap_offsets[tap] + c] - x_zero) * w[tap, c]
//
// The sum exact, the product and the sum of floats each rounded by itself.
struct Depthwise {
  int64_t channels, taps;
  const int64_t* tap_offsets;  // [taps]
  int32_t x_zero;
  const int16_t* weights;      // [taps, channels]: less their zero points
  const float* scales;         // [channels]: of x times that of w
  const float* bias;           // [channels], or null
};

struct DepthwiseKernels {
  // All channels of the window whose first tap lies at x.
  void (*window)(const Depthwise& call, const int8_t* x, float* y);
};

extern const DepthwiseKernels reference_depthwise, avx2_depthwise, avx512_depthwise;

}  // namespace subbyte
