// A tile of a product: some rows of bytes times 16 outputs of unpacked bytes.
#pragma once

#include <arm_neon.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

constexpr int kQuarters = kPanel / 4;
constexpr int kTileRows = 2;

// How many products of a signed byte with a value of so many bits fit in 16 bits; with 8 the value is signed.
constexpr int products_in_16_bits(int bits) { return bits == 8 ? 1 : 32767 / (((1 << bits) - 1) * 128); }

inline int8x8_t broadcast_four(const int8_t* from) {
  typedef int32_t Unaligned __attribute__((aligned(1), may_alias));
  return vreinterpret_s8_s32(vdup_n_s32(*reinterpret_cast<const Unaligned*>(from)));
}

// Adds to `total` the products of a few steps, first summed in 16 bits.
template <int Rows>
inline void add_steps(int32x4_t (&total)[Rows][kQuarters], const int8_t* const* x, int64_t first, const int8_t* w, int64_t steps) {
  int16x8_t sums[Rows][2 * kQuarters];
  for (int r = 0; r < Rows; ++r) {
    for (int16x8_t& each : sums[r]) {
      each = vdupq_n_s16(0);
    }
  }
  for (int64_t step = first; step < first + steps; ++step, w += 64) {
    for (int r = 0; r < Rows; ++r) {
      const int8x8_t four = broadcast_four(x[r] + kStep * step);
#pragma GCC unroll 8
      for (int eighth = 0; eighth < 2 * kQuarters; ++eighth) {
        sums[r][eighth] = vmlal_s8(sums[r][eighth], vld1_s8(w + 8 * eighth), four);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const int32x4_t low = vpaddlq_s16(sums[r][2 * quarter]), high = vpaddlq_s16(sums[r][2 * quarter + 1]);
      total[r][quarter] = vaddq_s32(total[r][quarter], vpaddq_s32(low, high));
    }
  }
}

// Adds to `total` the products of `steps` steps of rows at x[r] with w [steps][64], values of at most `Bits` bits.
template <int Rows, int Bits>
inline void add_tile(int32x4_t (&total)[Rows][kQuarters], const int8_t* const* x, const int8_t* w, int64_t steps) {
  constexpr int at_once = products_in_16_bits(Bits);
  for (int64_t first = 0; first < steps; first += at_once, w += 64 * at_once) {
    add_steps<Rows>(total, x, first, w, steps - first < at_once ? steps - first : at_once);
  }
}

}  // namespace
}  // namespace subbyte
