// Integer codes times packed integer codes.
#pragma once

#include <stdint.h>

namespace subbyte {

// One call of a linear layer on integer codes.
//
//   y[m, n] = sum over groups g of float(t[m, n, g]) * (x_scale[m] * w_scale[n, g])  [+ bias[n]]
//   t[m, n, g] = sum over k in g of (x[m, k] - x_zero[m]) * (w[n, k] - w_zero[n, g])     (exact, modulo 2^32)
//
// Each product and each sum of floats is rounded by itself, groups in order. `x` are signed bytes; `w` unsigned codes
// of `bits` bits, in panels: 16 outputs side by side, four neighbouring k of each (a step: 64 codes, packed densely),
// one step after another, every group filled up to whole steps with x = 0 and w = 0.
struct Linear {
  int64_t rows, outputs, groups, steps;  // steps: of all groups
  int bits;
  const int64_t* group_steps;   // [groups]
  const int64_t* group_sizes;   // [groups], of real k
  const int8_t* x;              // [rows, 4 * steps]
  const int32_t* x_sums;        // [rows, groups]: of x
  const float* x_scales;        // [rows]
  const int32_t* x_zeros;       // [rows]
  const uint8_t* panels;        // [panels, steps, 8 * bits]
  const float* w_scales;        // [panels, groups, 16]
  const int32_t* w_zeros;       // [panels, groups, 16]
  const int32_t* w_sums;        // [panels, groups, 16]: of w
  const float* bias;            // [panels, 16], or null
  float* y;                     // [rows, outputs]
};

struct LinearKernels {
  // Some rows of some panels of 16 outputs.
  void (*linear)(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel);
};

extern const LinearKernels reference_linear, avx2_linear, avx512_linear;

}  // namespace subbyte
