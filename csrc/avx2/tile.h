// A tile of a product: some rows of bytes times 16 outputs of unpacked bytes.
#pragma once

#include <immintrin.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

inline __m256i broadcast_four(const int8_t* from) {
  typedef int32_t Unaligned __attribute__((aligned(1), may_alias));
  return _mm256_set1_epi32(*reinterpret_cast<const Unaligned*>(from));
}

// How many products of two bytes of w, each of at most `Bits` bits, with two of x fit in 16 bits, up to 16; 0: not even one.
constexpr int sums_in_16_bits(int bits) {
  return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : bits == 7 ? 1 : 0;
}

// Sums of the products of four unsigned bytes of w with four signed bytes of x. maddubs adds two products in 16 bits,
// which saturate: the highest bit of a byte goes by itself.
inline __m256i products_of_8_bits(__m256i w, __m256i x) {
  const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(127), top = _mm256_set1_epi8(1);
  const __m256i high_bit = _mm256_and_si256(_mm256_srli_epi16(w, 7), top);
  const __m256i by_low = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(w, low), x), ones);
  const __m256i by_high = _mm256_madd_epi16(_mm256_maddubs_epi16(high_bit, x), _mm256_set1_epi16(128));
  return _mm256_add_epi32(by_low, by_high);
}

// Adds to `total` the products of up to AtOnce steps, first summed in 16 bits.
template <int Rows, int AtOnce>
inline void add_steps(__m256i (&total)[Rows][2], const int8_t* const* x, int64_t first, const uint8_t* w, int64_t steps) {
  __m256i sums[Rows][2];
#pragma GCC unroll 3
  for (int r = 0; r < Rows; ++r) {
    sums[r][0] = sums[r][1] = _mm256_setzero_si256();
  }
  for (int64_t step = 0; step < steps; ++step, w += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32));
#pragma GCC unroll 3
    for (int r = 0; r < Rows; ++r) {
      const __m256i four = broadcast_four(x[r] + kStep * (first + step));
      sums[r][0] = _mm256_add_epi16(sums[r][0], _mm256_maddubs_epi16(low, four));
      sums[r][1] = _mm256_add_epi16(sums[r][1], _mm256_maddubs_epi16(high, four));
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 3
  for (int r = 0; r < Rows; ++r) {
    total[r][0] = _mm256_add_epi32(total[r][0], _mm256_madd_epi16(sums[r][0], ones));
    total[r][1] = _mm256_add_epi32(total[r][1], _mm256_madd_epi16(sums[r][1], ones));
  }
}

// Adds to `total` the products of `steps` steps of rows at x[r] with w [steps][64], bytes of at most `Bits` bits.
template <int Rows, int Bits>
inline void add_tile(__m256i (&total)[Rows][2], const int8_t* const* x, const uint8_t* w, int64_t steps) {
  constexpr int at_once = sums_in_16_bits(Bits);
  if constexpr (at_once > 0) {
    for (int64_t first = 0; first < steps; first += at_once, w += 64 * at_once) {
      add_steps<Rows, at_once>(total, x, first, w, steps - first < at_once ? steps - first : at_once);
    }
  } else {
    for (int64_t step = 0; step < steps; ++step, w += 64) {
      for (int half = 0; half < 2; ++half) {
        const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * half));
        for (int r = 0; r < Rows; ++r) {
          const __m256i four = broadcast_four(x[r] + kStep * step);
          total[r][half] = _mm256_add_epi32(total[r][half], products_of_8_bits(values, four));
        }
      }
    }
  }
}

}  // namespace
}  // namespace subbyte
