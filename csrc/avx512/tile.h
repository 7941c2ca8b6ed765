// A tile of a product: some rows of bytes times 64 outputs of unpacked bytes, its sums in registers.
#pragma once

#include <immintrin.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

constexpr int kTileRows = 6;
constexpr int kTilePanels = 4;
constexpr int64_t kSliceSteps = 96;  // unpacked at once: 24 KiB, which stay in the first cache

inline __m512i broadcast_four(const int8_t* from) {
  typedef int32_t Unaligned __attribute__((aligned(1), may_alias));
  return _mm512_set1_epi32(*reinterpret_cast<const Unaligned*>(from));
}

// total += products of the four unsigned bytes of each lane of w with the four signed bytes of x. Not the intrinsic:
// gcc 12 spills its accumulators.
inline void add_products(__m512i& total, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(w), "v"(x));
}

// The same, of the four bytes at x for every lane.
inline void add_products(__m512i& total, __m512i w, const int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(total) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(x)));
}

// Adds the products of `steps` steps of rows at x + offsets[r] with the first Panels of w [steps][kTilePanels][64].
template <int Rows, int Panels>
inline void add_tile(__m512i (&total)[Rows][Panels], const int8_t* x, const int64_t* offsets, const uint8_t* w,
                     int64_t steps) {
  const int8_t* at[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    at[r] = x + offsets[r];
  }
  for (int64_t step = 0; step < steps; ++step, w += 64 * kTilePanels) {
    __m512i values[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      values[p] = _mm512_load_si512(w + 64 * p);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m512i four = broadcast_four(at[r] + kStep * step);  // once for all panels: four loads would be the limit
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        add_products(total[r][p], values[p], four);
      }
    }
  }
}

}  // namespace
}  // namespace subbyte
