// AVX2 and BMI2: eight codes are gathered in one word, or spread from it, by pext and pdep.
#include <immintrin.h>

#include "kernels.h"

namespace subbyte {
namespace {

// The low `bits` bits of each byte.
uint64_t byte_mask(int bits) { return 0x0101010101010101ull * ((1u << bits) - 1); }

void store_low(uint8_t* to, uint64_t word, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    to[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

uint64_t load_low(const uint8_t* from, int64_t bytes) {
  uint64_t word = 0;
  for (int64_t i = 0; i < bytes; ++i) {
    word |= static_cast<uint64_t>(from[i]) << (8 * i);
  }
  return word;
}

typedef uint64_t UnalignedWord __attribute__((aligned(1), may_alias));

uint64_t load_word(const uint8_t* from) { return *reinterpret_cast<const UnalignedWord*>(from); }

void store_word(uint8_t* to, uint64_t word) { *reinterpret_cast<UnalignedWord*>(to) = word; }

int32_t load_four(const int8_t* from) {
  typedef int32_t Unaligned __attribute__((aligned(1), may_alias));
  return *reinterpret_cast<const Unaligned*>(from);
}

int64_t packed_size(int64_t count, int bits) { return (count * bits + 7) / 8; }

void pack(const uint8_t* codes, int64_t count, int bits, uint8_t* packed) {
  const uint64_t mask = byte_mask(bits);
  uint8_t* const end = packed + packed_size(count, bits);
  int64_t i = 0;
  for (; i + 8 <= count && end - packed >= 8; i += 8, packed += bits) {
    store_word(packed, _pext_u64(load_word(codes + i), mask));  // what lies above `bits` bytes is written over next
  }
  for (; i < count; i += 8, packed += bits) {
    const int64_t rest = count - i < 8 ? count - i : 8;
    store_low(packed, _pext_u64(load_low(codes + i, rest), mask), packed_size(rest, bits));
  }
}

void unpack(const uint8_t* packed, int64_t count, int bits, bool is_signed, uint8_t* codes) {
  const uint64_t mask = byte_mask(bits);
  const uint8_t* const end = packed + packed_size(count, bits);
  const __m128i sign = _mm_set1_epi8(static_cast<char>(is_signed ? 1 << (bits - 1) : 0));
  const auto spread = [&](uint64_t word) {
    const __m128i code = _mm_cvtsi64_si128(static_cast<long long>(_pdep_u64(word, mask)));
    return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_sub_epi8(_mm_xor_si128(code, sign), sign)));
  };
  int64_t i = 0;
  for (; i + 8 <= count && end - packed >= 8; i += 8, packed += bits) {
    store_word(codes + i, spread(load_word(packed)));
  }
  for (; i < count; i += 8, packed += bits) {
    const int64_t rest = count - i < 8 ? count - i : 8;
    store_low(codes + i, spread(load_low(packed, packed_size(rest, bits))), rest);
  }
}

void sign_pack(const float* x, int64_t count, uint8_t* packed) {
  const __m256 zero = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    *packed++ = static_cast<uint8_t>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), zero, _CMP_GE_OQ)));
  }
  if (i < count) {
    reference_kernels.sign_pack(x + i, count - i, packed);
  }
}

bool quantize(const float* x, int64_t count, const Affine& affine, int8_t* codes) {
  const __m256 scale = _mm256_set1_ps(affine.scale), zero = _mm256_set1_ps(static_cast<float>(affine.zero_point));
  const __m256 low = _mm256_set1_ps(static_cast<float>(affine.low));
  const __m256 high = _mm256_set1_ps(static_cast<float>(affine.high));
  const __m256i shift = _mm256_set1_epi32(affine.shift);
  __m256 any_nan = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 quotient = _mm256_div_ps(_mm256_loadu_ps(x + i), scale);
    const __m256 rounded = _mm256_round_ps(quotient, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 code = _mm256_add_ps(rounded, zero);
    any_nan = _mm256_or_ps(any_nan, _mm256_cmp_ps(code, code, _CMP_UNORD_Q));
    const __m256 inside = _mm256_min_ps(_mm256_max_ps(code, low), high);  // of a NaN: low
    const __m256i shifted = _mm256_sub_epi32(_mm256_cvtps_epi32(inside), shift);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packs_epi16(words, words));
  }
  const bool rest_has_nan = i < count && reference_kernels.quantize(x + i, count - i, affine, codes + i);
  return rest_has_nan || _mm256_movemask_ps(any_nan) != 0;
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

const Kernels avx2_kernels = {pack, unpack, sign_pack, quantize, linear};

}  // namespace subbyte
