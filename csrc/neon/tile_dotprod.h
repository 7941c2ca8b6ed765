// A tile of a product by `sdot`: some rows of bytes times 16 outputs of unpacked bytes.
#pragma once

#include <arm_neon.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

constexpr int kQuarters = kPanel / 4;
constexpr int kTileRows = 4;

// Adds to `total` the products of `steps` steps of rows at x[r] with w [steps][64].
template <int Rows, int>
inline void add_tile(int32x4_t (&total)[Rows][kQuarters], const int8_t* const* x, const int8_t* w, int64_t steps) {
  typedef int32_t Unaligned __attribute__((aligned(1), may_alias));
  for (int64_t step = 0; step < steps; ++step, w += 64) {
    const int8x16_t values[kQuarters] = {vld1q_s8(w), vld1q_s8(w + 16), vld1q_s8(w + 32), vld1q_s8(w + 48)};
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(*reinterpret_cast<const Unaligned*>(x[r] + kStep * step)));
#pragma GCC unroll 4
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        total[r][quarter] = vdotq_s32(total[r][quarter], values[quarter], four);
      }
    }
  }
}

}  // namespace
}  // namespace subbyte
