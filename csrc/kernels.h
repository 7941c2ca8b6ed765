// The table of kernels: one for each instruction set, and the plain one that says what all of them compute.
//
// The files that fill it include nothing but <stdint.h> and intrinsics: a function of the standard library that the
// compiler emits there, with their flags, could be the copy that the linker keeps for every CPU.
#pragma once

#include <stdint.h>

namespace subbyte {

// How floats become codes, and codes signed bytes.
struct Affine {
  float scale;
  int32_t zero_point, low, high, shift;
};

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

struct Kernels {
  // Codes into a stream of `bits` bits each, low bits first. `count` codes; the last byte's unused bits are 0.
  void (*pack)(const uint8_t* codes, int64_t count, int bits, uint8_t* packed);
  // The way back; where `is_signed`, the highest bit of a code is its sign and fills the byte.
  void (*unpack)(const uint8_t* packed, int64_t count, int bits, bool is_signed, uint8_t* codes);
  // Bit i is 1 where x[i] >= 0, NaN as 0: sign(0) = +1.
  void (*sign_pack)(const float* x, int64_t count, uint8_t* packed);
  // clamp(round_half_even(x / scale) + zero_point, low, high) - shift; returns whether a NaN was among them.
  bool (*quantize)(const float* x, int64_t count, const Affine& affine, int8_t* codes);
  // Some rows of some panels of 16 outputs.
  void (*linear)(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel);
};

extern const Kernels reference_kernels;
#ifdef SUBBYTE_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif
#ifdef SUBBYTE_ARM
extern const Kernels neon_kernels;
#endif

}  // namespace subbyte
