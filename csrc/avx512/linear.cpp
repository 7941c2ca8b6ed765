// Linear layers by AVX-512 with VNNI.
#include <immintrin.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

__mmask64 first_bytes(int64_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

// For each byte of the result, which byte of the source: lane l takes `stride` bytes from l * stride.
__m512i lane_bytes(int stride) {
  alignas(64) uint8_t index[64];
  for (int lane = 0; lane < 8; ++lane) {
    for (int byte = 0; byte < 8; ++byte) {
      index[8 * lane + byte] = static_cast<uint8_t>(lane * stride + byte);
    }
  }
  return _mm512_load_si512(index);
}

// For each byte of the result, the first bit of its code within the lane.
__m512i code_shifts(int bits) {
  alignas(64) uint8_t shift[64];
  for (int i = 0; i < 64; ++i) {
    shift[i] = static_cast<uint8_t>(i % 8 * bits);
  }
  return _mm512_load_si512(shift);
}

// total += products of the four unsigned bytes of each lane of w with the four signed bytes at x. Not the intrinsic:
// gcc 12 spills its accumulators, and loads what the instruction can broadcast.
inline void add_products(__m512i& total, __m512i w, const int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(total) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(x)));
}

// What a width makes of 64 codes.
struct Cut {
  __m512i index, shifts, mask;
};

inline __m512i cut_step(const uint8_t* packed, __mmask64 bytes, const Cut& cut) {
  const __m512i stream = _mm512_maskz_loadu_epi8(bytes, packed);
  return _mm512_and_si512(_mm512_multishift_epi64_epi8(cut.shifts, _mm512_permutexvar_epi8(cut.index, stream)), cut.mask);
}

// The exact sums of one group, scaled: the term that it adds to y.
inline __m512 term_of(const Linear& call, __m512i total, int64_t m, int64_t group, int64_t panel) {
  const int64_t first = (panel * call.groups + group) * 16;
  const __m512i w_zero = _mm512_loadu_si512(call.w_zeros + first), w_sum = _mm512_loadu_si512(call.w_sums + first);
  const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m]);
  const uint32_t size = static_cast<uint32_t>(call.group_sizes[group]);
  // total - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero
  const __m512i by_w_zero = _mm512_set1_epi32(
      static_cast<int>(size * x_zero - static_cast<uint32_t>(call.x_sums[m * call.groups + group])));
  total = _mm512_add_epi32(total, _mm512_mullo_epi32(w_zero, by_w_zero));
  total = _mm512_sub_epi32(total, _mm512_mullo_epi32(w_sum, _mm512_set1_epi32(static_cast<int>(x_zero))));
  const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(call.x_scales[m]), _mm512_loadu_ps(call.w_scales + first));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(total), scale);
}

// `Rows` rows of one panel. Chains: accumulators for each row, so that one row alone does not wait for itself.
template <int Rows, int Chains>
void panel_rows(const Linear& call, int64_t m, int64_t panel, const Cut& cut) {
  const int bytes_of_step = 8 * call.bits;
  const __mmask64 bytes = first_bytes(bytes_of_step);
  const uint8_t* packed = call.panels + panel * call.steps * bytes_of_step;
  const int64_t row = 4 * call.steps;
  const int8_t* x = call.x + m * row;
  __m512 y[Rows];
  for (int64_t group = 0; group < call.groups; ++group) {
    __m512i total[Chains][Rows];
    for (int chain = 0; chain < Chains; ++chain) {
      for (int r = 0; r < Rows; ++r) {
        total[chain][r] = _mm512_setzero_si512();
      }
    }
    int64_t left = call.group_steps[group];
    for (; left >= Chains; left -= Chains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < Chains; ++chain, packed += bytes_of_step, x += 4) {
        const __m512i w = cut_step(packed, bytes, cut);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          add_products(total[chain][r], w, x + r * row);
        }
      }
    }
    for (; left > 0; --left, packed += bytes_of_step, x += 4) {
      const __m512i w = cut_step(packed, bytes, cut);
      for (int r = 0; r < Rows; ++r) {
        add_products(total[0][r], w, x + r * row);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int chain = 1; chain < Chains; ++chain) {
        total[0][r] = _mm512_add_epi32(total[0][r], total[chain][r]);
      }
      const __m512 term = term_of(call, total[0][r], m + r, group, panel);
      y[r] = group == 0 ? term : _mm512_add_ps(y[r], term);
    }
  }
  const int64_t rest = call.outputs - panel * 16;
  const __mmask16 real = static_cast<__mmask16>(rest < 16 ? (1u << rest) - 1 : 0xffff);
  for (int r = 0; r < Rows; ++r) {
    if (call.bias != nullptr) {
      y[r] = _mm512_add_ps(y[r], _mm512_loadu_ps(call.bias + panel * 16));
    }
    _mm512_mask_storeu_ps(call.y + (m + r) * call.outputs + panel * 16, real, y[r]);
  }
}

void linear(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  const Cut cut = {lane_bytes(call.bits), code_shifts(call.bits), _mm512_set1_epi8(static_cast<char>((1 << call.bits) - 1))};
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    int64_t m = first_row;
    for (; m + 12 <= end_row; m += 12) {
      panel_rows<12, 1>(call, m, panel, cut);
    }
    for (; m + 4 <= end_row; m += 4) {
      panel_rows<4, 2>(call, m, panel, cut);
    }
    for (; m < end_row; ++m) {
      panel_rows<1, 4>(call, m, panel, cut);
    }
  }
}

}  // namespace

const LinearKernels avx512_linear = {linear};

}  // namespace subbyte
