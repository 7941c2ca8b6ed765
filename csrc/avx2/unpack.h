// Steps of a packed block (kernels/linear.h) cut out in registers.
#pragma once

#include <immintrin.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

inline __m256i load_bytes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// Part of `Width` bits of step `Step`, moved up to bit `Place`; the neighbours' bits around it are cut off.
template <int Width, int Step, int Place>
inline __m256i part_of(const uint8_t* words) {
  constexpr int in_word = 8 / Width;
  constexpr int shift = Step % in_word * Width - Place;
  __m256i word = load_bytes(words + 64 * (Step / in_word));
  if (shift > 0) {
    word = _mm256_srli_epi16(word, shift > 0 ? shift : 0);
  } else if (shift < 0) {
    word = _mm256_slli_epi16(word, shift < 0 ? -shift : 0);
  }
  return Width == 8 ? word : _mm256_and_si256(word, _mm256_set1_epi8(static_cast<char>(((1 << Width) - 1) << Place)));
}

// The codes of eight outputs in one step, as bytes; the other eight lie 32 bytes on.
template <int Bits, int Step>
inline __m256i codes_of(const uint8_t* block) {
  constexpr int top = Bits >= 8 ? 8 : Bits >= 4 ? 4 : Bits >= 2 ? 2 : 1;
  __m256i codes = part_of<top, Step, 0>(block);
  if (Bits == 6 || Bits == 7) {
    codes = _mm256_or_si256(codes, part_of<2, Step, Bits == 6 || Bits == 7 ? 4 : 0>(block + 256));
  }
  if (Bits == 3 || Bits == 5 || Bits == 7) {
    constexpr int place = Bits == 3 || Bits == 5 || Bits == 7 ? Bits - 1 : 0;
    codes = _mm256_or_si256(codes, part_of<1, Step, place>(block + 64 * (Bits - 1)));
  }
  return codes;
}

// What a code stands for: itself, or an entry of a table of 16 bytes.
template <bool Table>
inline __m256i values_of(__m256i codes, __m256i table) {
  return Table ? _mm256_shuffle_epi8(table, codes) : codes;
}

inline __m256i table_of(const uint8_t* values) {
  return values == nullptr
             ? _mm256_setzero_si256()
             : _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
}

// Writes the first `steps` steps of a block, 64 bytes each.
template <int Bits, bool Table, int Step>
inline void unpack_block(const uint8_t* block, int64_t steps, __m256i table, uint8_t* to) {
  if constexpr (Step < kBlockSteps) {
    if (Step < steps) {
      for (int half = 0; half < 64; half += 32) {
        const __m256i values = values_of<Table>(codes_of<Bits, Step>(block + half), table);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 64 * Step + half), values);
      }
      unpack_block<Bits, Table, Step + 1>(block, steps, table, to);
    }
  }
}

}  // namespace
}  // namespace subbyte
