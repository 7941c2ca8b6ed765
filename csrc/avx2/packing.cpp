// AVX2 and BMI2: eight codes are gathered in one word, or spread from it, by pext and pdep.
#include <immintrin.h>

#include "../kernels/packing.h"

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
    reference_packing.sign_pack(x + i, count - i, packed);
  }
}

}  // namespace

const PackingKernels avx2_packing = {pack, unpack, sign_pack};

}  // namespace subbyte
