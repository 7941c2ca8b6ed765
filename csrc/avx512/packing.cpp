// AVX-512 with VBMI: 64 codes of b bits are b*8 bytes of the stream; a byte permutation gives each 64-bit lane the b
// bytes of its eight codes, and one multishift cuts them apart.
#include <immintrin.h>

#include "../kernels/packing.h"

namespace subbyte {
namespace {

__mmask64 first_bytes(int64_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

int64_t packed_size(int64_t count, int bits) { return (count * bits + 7) / 8; }

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

// The inverse of lane_bytes: the first `stride` bytes of each lane, one lane after another.
__m512i gathered_bytes(int stride) {
  alignas(64) uint8_t index[64];
  for (int i = 0; i < 64; ++i) {
    index[i] = static_cast<uint8_t>(i / stride % 8 * 8 + i % stride);
  }
  return _mm512_load_si512(index);
}

void unpack(const uint8_t* packed, int64_t count, int bits, bool is_signed, uint8_t* codes) {
  const __m512i index = lane_bytes(bits), shifts = code_shifts(bits);
  const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << bits) - 1));
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(is_signed ? 1 << (bits - 1) : 0));
  for (int64_t i = 0; i < count; i += 64, packed += 8 * bits) {
    const int64_t rest = count - i < 64 ? count - i : 64;
    const __m512i stream = _mm512_maskz_loadu_epi8(first_bytes(packed_size(rest, bits)), packed);
    const __m512i cut = _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(index, stream));
    const __m512i code = _mm512_and_si512(cut, mask);
    _mm512_mask_storeu_epi8(codes + i, first_bytes(rest), _mm512_sub_epi8(_mm512_xor_si512(code, sign), sign));
  }
}

// Pairs of codes, then pairs of pairs, then all eight of a lane, side by side.
__m512i joined(__m512i codes, int bits) {
  const __m512i low_byte = _mm512_set1_epi16(0x00ff), low_half = _mm512_set1_epi32(0x0000ffff);
  const __m512i low_word = _mm512_set1_epi64(0x00000000ffffffffll);
  __m512i odd = _mm512_srli_epi16(codes, 8);
  __m512i joint = _mm512_or_si512(_mm512_and_si512(codes, low_byte), _mm512_sll_epi16(odd, _mm_cvtsi32_si128(bits)));
  odd = _mm512_srli_epi32(joint, 16);
  joint = _mm512_or_si512(_mm512_and_si512(joint, low_half), _mm512_sll_epi32(odd, _mm_cvtsi32_si128(2 * bits)));
  odd = _mm512_srli_epi64(joint, 32);
  return _mm512_or_si512(_mm512_and_si512(joint, low_word), _mm512_sll_epi64(odd, _mm_cvtsi32_si128(4 * bits)));
}

void pack(const uint8_t* codes, int64_t count, int bits, uint8_t* packed) {
  const __m512i index = gathered_bytes(bits);
  const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << bits) - 1));
  for (int64_t i = 0; i < count; i += 64, packed += 8 * bits) {
    const int64_t rest = count - i < 64 ? count - i : 64;
    const __m512i code = _mm512_and_si512(_mm512_maskz_loadu_epi8(first_bytes(rest), codes + i), mask);
    const __m512i stream = _mm512_permutexvar_epi8(index, joined(code, bits));
    _mm512_mask_storeu_epi8(packed, first_bytes(packed_size(rest, bits)), stream);
  }
}

void sign_pack(const float* x, int64_t count, uint8_t* packed) {
  const __m512 zero = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += 16, packed += 2) {
    const int64_t rest = count - i < 16 ? count - i : 16;
    const __mmask16 given = static_cast<__mmask16>((1u << rest) - 1);
    const __mmask16 bits = _mm512_mask_cmp_ps_mask(given, _mm512_maskz_loadu_ps(given, x + i), zero, _CMP_GE_OQ);
    packed[0] = static_cast<uint8_t>(bits);
    if (rest > 8) {
      packed[1] = static_cast<uint8_t>(bits >> 8);
    }
  }
}

}  // namespace

const PackingKernels avx512_packing = {pack, unpack, sign_pack};

}  // namespace subbyte
