// Steps of a packed block (kernels/linear.h) cut out in registers.
#pragma once

#include <immintrin.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

// Part of `Width` bits of step `Step`, moved up to bit `Place`.
template <int Width, int Step, int Place>
inline __m512i part_of(const uint8_t* words) {
  constexpr int in_word = 8 / Width;
  constexpr int shift = Step % in_word * Width - Place;
  __m512i word = _mm512_loadu_si512(words + 64 * (Step / in_word));
  if (shift > 0) {
    word = _mm512_srli_epi16(word, shift > 0 ? shift : 0);
  } else if (shift < 0) {
    word = _mm512_slli_epi16(word, shift < 0 ? -shift : 0);
  }
  return word;
}

// The 64 codes of one step, as bytes.
template <int Bits, int Step>
inline __m512i codes_of(const uint8_t* block) {
  constexpr int top = Bits >= 8 ? 8 : Bits >= 4 ? 4 : Bits >= 2 ? 2 : 1;
  __m512i codes = part_of<top, Step, 0>(block);
  if (top < 8) {
    codes = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>((1 << top) - 1)));
  }
  if (Bits == 6 || Bits == 7) {  // and-or in one: 0xea is (a & b) | c
    const __m512i two = part_of<2, Step, Bits == 6 || Bits == 7 ? 4 : 0>(block + 256);
    codes = _mm512_ternarylogic_epi64(two, _mm512_set1_epi8(0x30), codes, 0xea);
  }
  if (Bits == 3 || Bits == 5 || Bits == 7) {
    constexpr int place = Bits == 3 || Bits == 5 || Bits == 7 ? Bits - 1 : 0;
    const __m512i one = part_of<1, Step, place>(block + 64 * (Bits - 1));
    codes = _mm512_ternarylogic_epi64(one, _mm512_set1_epi8(1 << place), codes, 0xea);
  }
  return codes;
}

// What a code stands for: itself, or an entry of a table of 16 bytes.
template <bool Table>
inline __m512i values_of(__m512i codes, __m512i table) {
  return Table ? _mm512_shuffle_epi8(table, codes) : codes;
}

inline __m512i table_of(const uint8_t* values) {
  return values == nullptr
             ? _mm512_setzero_si512()
             : _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
}

// Calls `work.template step<0>(codes)` ... of the first `steps` of a block: all 8 where it is whole.
template <int Bits, int Step, typename Work>
inline void each_step(const uint8_t* block, int64_t steps, Work& work) {
  if constexpr (Step < kBlockSteps) {
    if (Step < steps) {
      work.template step<Step>(codes_of<Bits, Step>(block));
      each_step<Bits, Step + 1>(block, steps, work);
    }
  }
}

}  // namespace
}  // namespace subbyte
