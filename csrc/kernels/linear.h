// Integer codes times packed integer codes.
#pragma once

#include <stdint.h>

namespace subbyte {

// The order of a packed weight: panels of 16 outputs; of each panel, groups in order; of each group, blocks of 32
// neighbouring inputs, the last filled up. A block is 8 steps of 4 inputs, and a step 64 codes: 4 neighbouring inputs
// of the first output, of the second, and so on. The bits of a code are cut into parts of 4, 2 and 1 bits (8 bits are
// one part), the widest first and lowest; a part of p bits takes p words of 64 bytes, of which each holds 8/p steps: step
// s lies in word s / (8/p), in bits (s % (8/p)) * p and up of each byte.
constexpr int kPanel = 16;
constexpr int kStep = 4;
constexpr int kBlockSteps = 8;

inline int64_t blocks_of(int64_t steps) { return (steps + kBlockSteps - 1) / kBlockSteps; }
inline int64_t block_bytes(int bits) { return 64 * static_cast<int64_t>(bits); }

// One call of a linear layer on integer codes.
//
//   y[m, n] = sum over groups g of float(t[m, n, g]) * (x_scale[m] * w_scale[n, g])  [+ bias[n]]
//   t[m, n, g] = sum over k in g of (x[m, k] - x_zero[m]) * (w[n, k] - w_zero[n, g])     (exact, modulo 2^32)
//
// Each product and each sum of floats is rounded by itself, groups in order. `x` are signed bytes, each group filled up
// to whole steps with 0; w = values[code], or the code itself where there is no table.
struct Linear {
  int64_t rows, outputs, groups;
  int bits;
  const uint8_t* values;        // [16], for codes of at most 4 bits; or null
  const int64_t* group_steps;   // [groups]
  const int64_t* group_sizes;   // [groups], of real inputs
  int64_t panel_bytes;          // of one panel
  int64_t x_stride;             // from row to row
  const int8_t* x;              // [rows, x_stride]
  const int32_t* x_sums;        // [rows, groups]: of x
  const float* x_scales;        // [rows]
  const int32_t* x_zeros;       // [rows]
  const uint8_t* panels;        // [panels, panel_bytes]
  const float* w_scales;        // [panels, groups, 16]
  const int32_t* w_zeros;       // [panels, groups, 16], or null: all are w_zero
  int32_t w_zero;
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
