// Linear layers by AVX2.
#include <immintrin.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

// The low `bits` bits of each byte.
uint64_t byte_mask(int bits) { return 0x0101010101010101ull * ((1u << bits) - 1); }

uint64_t load_low(const uint8_t* from, int64_t bytes) {
  uint64_t word = 0;
  for (int64_t i = 0; i < bytes; ++i) {
    word |= static_cast<uint64_t>(from[i]) << (8 * i);
  }
  return word;
}

int32_t load_four(const int8_t* from) {
  typedef int32_t Unaligned __attribute__((aligned(1), may_alias));
  return *reinterpret_cast<const Unaligned*>(from);
}

// Sums of the products of four unsigned bytes of w with four signed bytes of x. maddubs adds two products in 16 bits:
// no two of 7-bit codes exceed them; the highest bit of an 8-bit code goes by itself.
template <bool Eight>
inline __m256i products(__m256i w, __m256i x) {
  const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(127), top = _mm256_set1_epi8(1);
  if (!Eight) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones);
  }
  const __m256i high_bit = _mm256_and_si256(_mm256_srli_epi16(w, 7), top);
  const __m256i by_low = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(w, low), x), ones);
  const __m256i by_high = _mm256_madd_epi16(_mm256_maddubs_epi16(high_bit, x), _mm256_set1_epi16(128));
  return _mm256_add_epi32(by_low, by_high);
}

// The exact sums of 8 outputs in one group, scaled: the term that it adds to y.
inline __m256 term_of(const Linear& call, __m256i total, int64_t m, int64_t group, int64_t first) {
  const __m256i w_zero = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(call.w_zeros + first));
  const __m256i w_sum = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(call.w_sums + first));
  const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m]);
  const uint32_t size = static_cast<uint32_t>(call.group_sizes[group]);
  const __m256i by_w_zero = _mm256_set1_epi32(
      static_cast<int>(size * x_zero - static_cast<uint32_t>(call.x_sums[m * call.groups + group])));
  total = _mm256_add_epi32(total, _mm256_mullo_epi32(w_zero, by_w_zero));
  total = _mm256_sub_epi32(total, _mm256_mullo_epi32(w_sum, _mm256_set1_epi32(static_cast<int>(x_zero))));
  const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(call.x_scales[m]), _mm256_loadu_ps(call.w_scales + first));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(total), scale);
}

template <int Rows, bool Eight>
void panel_rows(const Linear& call, int64_t m, int64_t panel) {
  const uint64_t mask = byte_mask(call.bits);
  const uint8_t* packed = call.panels + panel * call.steps * 8 * call.bits;
  const int64_t row = 4 * call.steps;
  const int8_t* x = call.x + m * row;
  __m256 y[Rows][2];
  for (int64_t group = 0; group < call.groups; ++group) {
    __m256i total[Rows][2];
    for (int r = 0; r < Rows; ++r) {
      total[r][0] = total[r][1] = _mm256_setzero_si256();
    }
    for (int64_t step = 0; step < call.group_steps[group]; ++step, x += 4) {
      alignas(32) uint64_t codes[8];
      for (int i = 0; i < 8; ++i, packed += call.bits) {
        codes[i] = _pdep_u64(load_low(packed, call.bits), mask);
      }
      const __m256i first = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
      const __m256i second = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + 4));
      for (int r = 0; r < Rows; ++r) {
        const __m256i four = _mm256_set1_epi32(load_four(x + r * row));
        total[r][0] = _mm256_add_epi32(total[r][0], products<Eight>(first, four));
        total[r][1] = _mm256_add_epi32(total[r][1], products<Eight>(second, four));
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int half = 0; half < 2; ++half) {
        const __m256 term = term_of(call, total[r][half], m + r, group, (panel * call.groups + group) * 16 + 8 * half);
        y[r][half] = group == 0 ? term : _mm256_add_ps(y[r][half], term);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    alignas(32) float values[16];
    for (int half = 0; half < 2; ++half) {
      const float* bias = call.bias + panel * 16 + 8 * half;
      const __m256 value = call.bias == nullptr ? y[r][half] : _mm256_add_ps(y[r][half], _mm256_loadu_ps(bias));
      _mm256_store_ps(values + 8 * half, value);
    }
    float* to = call.y + (m + r) * call.outputs + panel * 16;
    for (int n = 0; n < 16 && panel * 16 + n < call.outputs; ++n) {
      to[n] = values[n];
    }
  }
}

template <bool Eight>
void panels(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    int64_t m = first_row;
    for (; m + 4 <= end_row; m += 4) {
      panel_rows<4, Eight>(call, m, panel);
    }
    for (; m < end_row; ++m) {
      panel_rows<1, Eight>(call, m, panel);
    }
  }
}

void linear(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  const auto run = call.bits == 8 ? panels<true> : panels<false>;
  run(call, first_row, end_row, first_panel, end_panel);
}

}  // namespace

const LinearKernels avx2_linear = {linear};

}  // namespace subbyte
