// Floats times packed integer codes.
#pragma once

#include <stdint.h>

#include "linear.h"

namespace subbyte {

// One product of rows of floats, each a `Number`, with a packed weight in the order of linear.h.
//
//   y[m, n] = sum over groups g of t[m, n, g] * w_scale[n, g]  [+ bias[n]]
//   t[m, n, g] = sum over k in g of x[m, k] * (w[n, k] - w_zero[n, g])
//
// Codes of at most 4 bits stand for entries of `values`, others for themselves. Each segment of x is filled up to whole
// steps with 0.
template <typename Number>
struct FloatProduct {
  int64_t outputs, groups, segment_count;
  int bits;
  const float* values;         // [16], entry i that of code i % 2^bits; for codes of at most 4 bits
  const Segment* segments;
  const Number* x;
  const int64_t* row_offsets;  // [rows]: where each begins in x
  const uint8_t* panels;       // [panels, panel_bytes]
  int64_t panel_bytes;
  const float* w_scales;       // [panels, groups, 16]
  const float* w_zeros;        // [panels, groups, 16], or null: 0
  const float* bias;           // [panels, 16], or null
  Number* y;                   // of row m and output n: y[m * y_stride + n - y_origin]
  int64_t y_stride, y_origin;
};

// What is worth taking at once: so many rows that a weight is seldom unpacked, so few that they stay near.
template <typename Number>
constexpr int64_t kFloatRows = 384 / sizeof(Number);
constexpr int64_t kFloatPanels = 4;

template <typename Number>
struct FloatProductKernels {
  // Some rows of some panels of 16 outputs.
  void (*linear)(const FloatProduct<Number>& call, int64_t first_row, int64_t end_row, int64_t first_panel,
                 int64_t end_panel);
};

// In fp32: inputs in order, each product added by one fused multiply-add; so is each group; the bias is added last.
using FloatLinear = FloatProduct<float>;
using FloatLinearKernels = FloatProductKernels<float>;

extern const FloatLinearKernels reference_float_linear, avx2_float_linear, avx512_float_linear;

}  // namespace subbyte
