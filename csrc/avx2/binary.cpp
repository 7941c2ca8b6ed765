// Sums of products by popcount, by AVX2: the bits of a nibble are looked up, and added up byte by byte.
#include <immintrin.h>

#include "../kernels/binary.h"

namespace subbyte {
namespace {

// A byte counts up to eight bits of each word: 31 words fit.
constexpr int64_t kWordsOfByte = 31;

inline uint64_t bits_of_8(const float* x, __m256 least) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), least, _CMP_NLT_UQ)));
}

// The bits of up to 64 floats.
inline uint64_t bits_of(const float* x, int64_t step, int64_t count, float least) {
  uint64_t word = 0;
  int64_t i = 0;
  if (step == 1) {
    for (; i + 8 <= count; i += 8) {
      word |= bits_of_8(x + i, _mm256_set1_ps(least)) << i;
    }
  }
  for (; i < count; ++i) {
    word |= static_cast<uint64_t>(!(x[i * step] < least)) << i;
  }
  return word;
}

void threshold(const Thresholding& call) {
  for (int64_t m = 0; m < call.rows; ++m) {
    const float least = call.thresholds[m * call.threshold_row];
    for (int64_t first = 0; first < call.count; first += 64) {
      const int64_t count = first + 64 < call.count ? 64 : call.count - first;
      const float* x = call.x + m * call.x_row + first * call.x_step;
      call.words[m * call.word_row + first / 64 * call.word_step] = bits_of(x, call.x_step, count, least);
    }
  }
}

void join(uint64_t* words, int64_t count, int64_t taps, int64_t distance, int64_t bits) {
  int64_t i = 0;
  for (; i + (taps - 1) * distance + 4 <= count; i += 4) {
    __m256i joined = _mm256_setzero_si256();
    for (int64_t tap = 0; tap < taps; ++tap) {
      const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i + tap * distance));
      joined = _mm256_or_si256(joined, _mm256_sll_epi64(word, _mm_cvtsi64_si128(tap * bits)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i), joined);
  }
  for (; i < count; ++i) {
    for (int64_t tap = 1; tap < taps && i + tap * distance < count; ++tap) {
      words[i] |= words[i + tap * distance] << (tap * bits);
    }
  }
}

// The number of ones in each byte.
inline __m256i popcounts(__m256i bits) {
  const __m256i ones = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i of_low = _mm256_shuffle_epi8(ones, _mm256_and_si256(bits, low));
  const __m256i of_high = _mm256_shuffle_epi8(ones, _mm256_and_si256(_mm256_srli_epi16(bits, 4), low));
  return _mm256_add_epi8(of_low, of_high);
}

inline __m256i load(const uint64_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// The results of one panel for one row.
inline void finish(const BinaryProducts& call, const __m256i (&total)[2], int64_t m, int64_t panel) {
  const int64_t n = 8 * panel;
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m256i differences = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(total[0], even),
                                                 _mm256_permutevar8x32_epi32(total[1], even), 0xf0);
  const __m256i base =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(call.bases + call.rows[m].base + n));
  const __m256i exact = _mm256_sub_epi32(base, _mm256_mullo_epi32(differences, _mm256_set1_epi32(call.step)));
  const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(call.x_scales[m * call.x_scale_row]), _mm256_loadu_ps(call.w_scales + n));
  __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(exact), scale);
  if (call.bias != nullptr) {
    y = _mm256_add_ps(y, _mm256_loadu_ps(call.bias + n));
  }
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int real = static_cast<int>(call.outputs - n < 8 ? call.outputs - n : 8);
  _mm256_maskstore_ps(call.y + m * call.y_row + n, _mm256_cmpgt_epi32(_mm256_set1_epi32(real), lanes), y);
}

template <int Rows, bool HasMasks>
void tile(const BinaryProducts& call, int64_t m, int64_t panel) {
  constexpr int64_t kStep = HasMasks ? 16 : 8;
  const __m256i zero = _mm256_setzero_si256();
  __m256i total[Rows][2];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    total[r][0] = total[r][1] = zero;
  }
  for (int64_t plane = 0; plane < call.planes; ++plane) {
    const uint64_t* w = call.panels + panel * call.words * kStep;
    const uint64_t* rows[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      rows[r] = call.x + call.rows[m + r].word + plane * call.x_plane;
    }
    for (int64_t first = 0; first < call.words; first += kWordsOfByte) {
      const int64_t end = first + kWordsOfByte < call.words ? first + kWordsOfByte : call.words;
      __m256i bytes[Rows][2];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        bytes[r][0] = bytes[r][1] = zero;
      }
      for (int64_t k = first; k < end; ++k, w += kStep) {
        const int64_t offset = call.offsets[k];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m256i sign = load(w + 4 * half);
#pragma GCC unroll 4
          for (int r = 0; r < Rows; ++r) {
            const __m256i word = _mm256_set1_epi64x(static_cast<long long>(rows[r][offset]));
            __m256i difference = _mm256_xor_si256(word, sign);
            if (HasMasks) {
              difference = _mm256_and_si256(difference, load(w + 8 + 4 * half));
            }
            bytes[r][half] = _mm256_add_epi8(bytes[r][half], popcounts(difference));
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          total[r][half] = _mm256_add_epi64(total[r][half], _mm256_sad_epu8(bytes[r][half], zero));
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    finish(call, total[r], m + r, panel);
  }
}

template <bool HasMasks>
void all_panels(const BinaryProducts& call, int64_t first_row, int64_t end_row, int64_t first_panel,
                int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    int64_t m = first_row;
    for (; m + 4 <= end_row; m += 4) {
      tile<4, HasMasks>(call, m, panel);
    }
    for (; m < end_row; ++m) {
      tile<1, HasMasks>(call, m, panel);
    }
  }
}

void products(const BinaryProducts& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  const auto run = call.has_masks ? all_panels<true> : all_panels<false>;
  run(call, first_row, end_row, first_panel, end_panel);
}

}  // namespace

const BinaryKernels avx2_binary = {threshold, join, products};

}  // namespace subbyte
