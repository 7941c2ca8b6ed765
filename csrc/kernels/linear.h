// Integer codes times packed integer codes.
#pragma once

#include <stdint.h>

namespace subbyte {

// The order of a packed weight: panels of 16 outputs; of each panel, segments in order; of each segment, blocks of 32
// neighbouring inputs, the last filled up. A block is 8 steps of 4 inputs, and a step 64 codes: 4 neighbouring inputs
// of the first output, of the second, and so on. The bits of a code are cut into parts of 4, 2 and 1 bits (8 bits are
// one part), the widest first and lowest; a part of p bits takes p words of 64 bytes, of which each holds 8/p steps: step
// s lies in word s / (8/p), in bits (s % (8/p)) * p and up of each byte.
constexpr int kPanel = 16;
constexpr int kStep = 4;
constexpr int kBlockSteps = 8;

inline int64_t blocks_of(int64_t steps) { return (steps + kBlockSteps - 1) / kBlockSteps; }
inline int64_t block_bytes(int bits) { return 64 * static_cast<int64_t>(bits); }

// Inputs that lie side by side in a row of x: a group of a linear layer, a row of a convolution's kernel.
struct Segment {
  int64_t steps;
  int64_t x_offset;  // from where a row begins
  int64_t group;     // whose scale it has
  bool begins_group, ends_group;
};

// One product of rows of integer codes with a packed weight.
//
//   y[m, n] = sum over groups g of float(t[m, n, g]) * (x_scale[m] * w_scale[n, g])  [+ bias[n]]
//   t[m, n, g] = sum over k in g of (x[m, k] - x_zero[m]) * (w[n, k] - w_zero[n, g])     (exact, modulo 2^32)
//
// Each product and each sum of floats is rounded by itself, groups in order. `x` are signed bytes, each segment filled
// up to whole steps with 0; w = values[code], or the code itself where there is no table.
struct Linear {
  int64_t rows, outputs, groups, segment_count;
  int bits;
  const uint8_t* values;        // [16], for codes of at most 4 bits; or null
  const Segment* segments;
  const int64_t* group_sizes;   // [groups], of real inputs
  const int8_t* x;
  const int64_t* row_offsets;   // [rows]: where each begins in x
  const int32_t* x_sums;        // [rows, groups]: of x
  int64_t x_step;               // 1; 0 where all rows share one scale and zero point
  const float* x_scales;
  const int32_t* x_zeros;
  const uint8_t* panels;        // [panels, panel_bytes]
  int64_t panel_bytes;
  const float* w_scales;        // [panels, groups, 16]
  const int32_t* w_zeros;       // [panels, groups, 16], or null: all are w_zero
  int32_t w_zero;
  const int32_t* w_sums;        // [panels, groups, 16]: of w
  const float* bias;            // [panels, 16], or null
  float* y;                     // of row m and output n: y[m * y_stride + n - y_origin]
  int64_t y_stride, y_origin;
};

struct LinearKernels {
  // Some rows of some panels of 16 outputs.
  void (*linear)(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel);
  int32_t (*sum)(const int8_t* x, int64_t count);
  // Of each of some places, `bytes` after each other: a multiple of 4.
  void (*sums)(const int8_t* x, int64_t places, int64_t bytes, int32_t* sums);
};

extern const LinearKernels reference_linear, avx2_linear, avx512_linear, neon_linear, neon_dotprod_linear;

}  // namespace subbyte
