// Floats times packed integer codes.
#pragma once

#include <stdint.h>

#include "linear.h"

namespace subbyte {

// One product of rows of floats with a packed weight, in the order of linear.h.
//
//   y[m, n] = sum over groups g of t[m, n, g] * w_scale[n, g]  [+ bias[n]]
//   t[m, n, g] = sum over k in g of x[m, k] * (w[n, k] - w_zero[n, g])
//
// In fp32, inputs in order, each product added by one fused multiply-add; so is each group; the bias is added last.
// Codes of at most 4 bits stand for entries of `values`, others for themselves. Each group of x is filled up to whole
// steps with 0.
struct FloatLinear {
  int64_t rows, outputs, groups;
  int bits;
  const float* values;     // [16], entry i that of code i % 2^bits; for codes of at most 4 bits
  const Segment* segments; // one for each group
  const float* x;
  int64_t x_stride;        // from row to row
  const uint8_t* panels;   // [panels, panel_bytes]
  int64_t panel_bytes;
  const float* w_scales;   // [panels, groups, 16]
  const float* w_zeros;    // [panels, groups, 16], or null: 0
  const float* bias;       // [panels, 16], or null
  float* y;                // [rows, outputs]
};

struct FloatLinearKernels {
  // Some rows of some panels of 16 outputs.
  void (*linear)(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel);
};

extern const FloatLinearKernels reference_float_linear, avx2_float_linear, avx512_float_linear;

}  // namespace subbyte
