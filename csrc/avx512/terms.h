// From the exact sums of a group to what they add to y.
#pragma once

#include <immintrin.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

__mmask16 real_outputs(const Linear& call, int64_t panel) {
  const int64_t rest = call.outputs - panel * kPanel;
  return static_cast<__mmask16>(rest < kPanel ? (1u << rest) - 1 : 0xffff);
}

// The exact sums of one group, scaled: the term that it adds to y.
inline __m512 term_of(const Linear& call, __m512i total, int64_t m, int64_t group, int64_t panel) {
  const int64_t first = (panel * call.groups + group) * kPanel;
  const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m * call.x_step]);
  const uint32_t size = static_cast<uint32_t>(call.group_sizes[group]);
  // total - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero
  const uint32_t by_w_zero = size * x_zero - static_cast<uint32_t>(call.x_sums[m * call.groups + group]);
  if (call.w_zeros == nullptr) {
    const uint32_t shift = by_w_zero * static_cast<uint32_t>(call.w_zero);
    total = _mm512_add_epi32(total, _mm512_set1_epi32(static_cast<int>(shift)));
  } else {
    const __m512i w_zero = _mm512_loadu_si512(call.w_zeros + first);
    total = _mm512_add_epi32(total, _mm512_mullo_epi32(w_zero, _mm512_set1_epi32(static_cast<int>(by_w_zero))));
  }
  if (x_zero != 0) {
    const __m512i w_sum = _mm512_loadu_si512(call.w_sums + first);
    total = _mm512_sub_epi32(total, _mm512_mullo_epi32(w_sum, _mm512_set1_epi32(static_cast<int>(x_zero))));
  }
  const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(call.x_scales[m * call.x_step]), _mm512_loadu_ps(call.w_scales + first));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(total), scale);
}

inline float* place_of(const Linear& call, int64_t m, int64_t panel) {
  return call.y + m * call.y_stride + panel * kPanel - call.y_origin;
}

inline __m512 with_bias(const Linear& call, __m512 y, int64_t panel) {
  return call.bias == nullptr ? y : _mm512_add_ps(y, _mm512_loadu_ps(call.bias + panel * kPanel));
}

// Scales the exact sums of a group and adds them to those of the groups before; the last group's go to y.
inline void add_term(const Linear& call, __m512i total, int64_t m, int64_t group, int64_t panel, float* before) {
  __m512 y = term_of(call, total, m, group, panel);
  y = group == 0 ? y : _mm512_add_ps(_mm512_load_ps(before), y);
  if (group + 1 < call.groups) {
    _mm512_store_ps(before, y);
  } else {
    _mm512_mask_storeu_ps(place_of(call, m, panel), real_outputs(call, panel), with_bias(call, y, panel));
  }
}

// Where the sums of a tile belong.
struct Terms {
  int64_t m, rows, panel, panels, group;
  float* sums;  // [rows][64]: of the groups before. Not in y, whose rows may lie so far apart that writing one holds up
                // reading the next
};

// As add_term for each row and panel, where weights have one zero point and all outputs are real: most calls, whose groups
// are short enough for this to count.
template <bool XZeros, int Rows, int Panels>
__attribute__((always_inline)) inline void add_plain_terms(const Linear& call, const Terms& at, const __m512i (&total)[Rows][Panels]) {
  const uint32_t size = static_cast<uint32_t>(call.group_sizes[at.group]), w_zero = static_cast<uint32_t>(call.w_zero);
  __m512 w_scale[Panels];
  __m512i w_sum[Panels];
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    const int64_t first = ((at.panel + p) * call.groups + at.group) * kPanel;
    w_scale[p] = _mm512_loadu_ps(call.w_scales + first);
    w_sum[p] = XZeros ? _mm512_loadu_si512(call.w_sums + first) : _mm512_setzero_si512();
  }
  const bool is_first = at.group == 0, is_last = at.group + 1 == call.groups;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    if (r < at.rows) {
      const int64_t m = at.m + r;
      const uint32_t x_zero = XZeros ? static_cast<uint32_t>(call.x_zeros[m * call.x_step]) : 0;
      const uint32_t by_w_zero = size * x_zero - static_cast<uint32_t>(call.x_sums[m * call.groups + at.group]);
      const __m512i shift = _mm512_set1_epi32(static_cast<int>(by_w_zero * w_zero));
      const __m512 x_scale = _mm512_set1_ps(call.x_scales[m * call.x_step]);
      float* const before = at.sums + 64 * r;
      float* const to = is_last ? place_of(call, m, at.panel) : before;
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        __m512i sum = _mm512_add_epi32(total[r][p], shift);
        if (XZeros) {
          sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(w_sum[p], _mm512_set1_epi32(static_cast<int>(x_zero))));
        }
        __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(x_scale, w_scale[p]));
        y = is_first ? y : _mm512_add_ps(_mm512_load_ps(before + kPanel * p), y);
        _mm512_storeu_ps(to + kPanel * p, is_last ? with_bias(call, y, at.panel + p) : y);
      }
    }
  }
}

// Inlined whatever it takes: sums that are passed on in memory would stay there while they are added up.
template <int Rows, int Panels>
__attribute__((always_inline)) inline void add_terms(const Linear& call, const Terms& at, const __m512i (&total)[Rows][Panels]) {
  if (call.w_zeros == nullptr && at.panels == Panels && (at.panel + Panels) * kPanel <= call.outputs) {
    int32_t any_zero = 0;
    for (int64_t r = 0; r < at.rows; ++r) {
      any_zero |= call.x_zeros[(at.m + r) * call.x_step];
    }
    return any_zero == 0 ? add_plain_terms<false>(call, at, total) : add_plain_terms<true>(call, at, total);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      if (r < at.rows && p < at.panels) {
        add_term(call, total[r][p], at.m + r, at.group, at.panel + p, at.sums + 64 * r + kPanel * p);
      }
    }
  }
}

}  // namespace
}  // namespace subbyte
