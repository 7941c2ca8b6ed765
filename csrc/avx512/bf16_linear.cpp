// Linear layers on bf16 by AVX-512 BF16: a word is two neighbouring inputs of an output.
#include <immintrin.h>

#include "../kernels/bf16_linear.h"
#include "float_tiles.h"
#include "float_values.h"

namespace subbyte {
namespace {

struct Bf16 {
  using Number = uint16_t;
  static constexpr int kWords = kStep / 2;

  struct Table {
    __m512 floats;
    __m512i numbers;  // twice the 16 entries in bf16: a code's fifth bit is 0
  };

  static inline Table table_of(const float* values) {
    const __m512 floats = floats_of_table(values);
    const __m256i numbers = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(floats), 16));
    return {floats, _mm512_broadcast_i64x4(numbers)};
  }

  // Exact in bf16, a float loses nothing with its lower half.
  template <int Bits, bool Zeros, int Word>
  static inline __m512 word_of(__m512i codes, const Table& table, __m512 zero) {
    if constexpr (Bits <= 4 && !Zeros) {
      constexpr int pair = (2 * Word + 1) << 16 | 2 * Word, next = 4 << 16 | 4;  // each byte below one that has no say
      const __m512i order = _mm512_set4_epi32(pair + 3 * next, pair + 2 * next, pair + next, pair);
      return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_shuffle_epi8(codes, order), table.numbers));
    } else {
      const __m512 low = float_of<Bits, Zeros, 2 * Word>(codes, table.floats, zero);
      const __m512 high = float_of<Bits, Zeros, 2 * Word + 1>(codes, table.floats, zero);
      const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
      const __m512i low_half = _mm512_srli_epi32(_mm512_castps_si512(low), 16);
      // (high & upper) | low_half
      return _mm512_castsi512_ps(_mm512_ternarylogic_epi64(_mm512_castps_si512(high), upper, low_half, 0xea));
    }
  }

  // Not the intrinsic: gcc 12 spills its accumulators.
  static inline void add(__m512& total, __m512 w, __m512 x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(w), "v"(x));
  }

  static inline void store(uint16_t* to, __mmask16 real, __m512 y) {
    const __m256bh rounded = _mm512_cvtneps_pbh(y);
    _mm256_mask_storeu_epi16(to, real, reinterpret_cast<const __m256i&>(rounded));
  }
};

}  // namespace

const Bf16LinearKernels avx512_bf16_linear = {linear<Bf16>};

}  // namespace subbyte
