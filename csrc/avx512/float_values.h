// What codes stand for, as floats.
#pragma once

#include <immintrin.h>

namespace subbyte {
namespace {

// What stands in byte `Place` of each lane: a code of at most 4 bits chooses one of 16 floats by a permutation.
template <int Bits, bool Zeros, int Place>
inline __m512 float_of(__m512i codes, __m512 values, __m512 zero) {
  const __m512i at_place = Place == 0 ? codes : _mm512_srli_epi32(codes, 8 * Place);
  const __m512 w = Bits <= 4 ? _mm512_permutexvar_ps(at_place, values)
                             : _mm512_cvtepi32_ps(_mm512_and_si512(at_place, _mm512_set1_epi32(0xff)));
  return Zeros ? _mm512_sub_ps(w, zero) : w;
}

// The 16 floats of a table; nothing where there is none.
inline __m512 floats_of_table(const float* values) {
  return values == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(values);
}

}  // namespace
}  // namespace subbyte
