// Sums of products by popcount, by AVX-512 with VPOPCNTDQ.
#include <immintrin.h>

#include "../kernels/binary.h"

namespace subbyte {
namespace {

__mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1); }

inline uint64_t bits_of_16(const float* x, __m512 least, __mmask16 given = 0xffff) {
  return _cvtmask16_u32(_mm512_mask_cmp_ps_mask(given, _mm512_maskz_loadu_ps(given, x), least, _CMP_NLT_UQ));
}

// The bits of 16 (Vectors - 1) neighbouring floats and of those of the last vector that there are.
template <int Vectors>
inline uint64_t bits_of(const float* x, __m512 least, __mmask16 last) {
  uint64_t word = bits_of_16(x + 16 * (Vectors - 1), least, last) << (16 * (Vectors - 1));
#pragma GCC unroll 3
  for (int i = 0; i < Vectors - 1; ++i) {
    word |= bits_of_16(x + 16 * i, least) << (16 * i);
  }
  return word;
}

// The floats of a row side by side. Vectors: in what is left of it after whole words.
template <int Vectors>
void threshold_rows(const Thresholding& given) {
  const Thresholding call = given;  // what is stored could otherwise be a part of it, for all the compiler knows
  const int64_t whole = (call.count - 1) / 64;
  const __mmask16 last = first_lanes(call.count - 64 * whole - 16 * (Vectors - 1));
  for (int64_t m = 0; m < call.rows; ++m) {
    const __m512 least = _mm512_set1_ps(call.thresholds[m * call.threshold_row]);
    const float* x = call.x + m * call.x_row;
    uint64_t* words = call.words + m * call.word_row;
    for (int64_t i = 0; i < whole; ++i) {
      words[i * call.word_step] = bits_of<4>(x + 64 * i, least, 0xffff);
    }
    words[whole * call.word_step] = bits_of<Vectors>(x + 64 * whole, least, last);
  }
}

// The rows side by side, sixteen at a time: a comparison gives one bit of each.
void threshold_columns(const Thresholding& call) {
  for (int64_t m = 0; m < call.rows; m += 16) {
    const __mmask16 given = first_lanes(call.rows - m);
    const __m512 least = call.threshold_row == 0 ? _mm512_set1_ps(*call.thresholds)
                                                 : _mm512_maskz_loadu_ps(given, call.thresholds + m);
    for (int64_t first = 0; first < call.count; first += 64) {
      const int64_t end = first + 64 < call.count ? first + 64 : call.count;
      __m512i low = _mm512_setzero_si512(), high = low;
      for (int64_t i = first; i < end; ++i) {
        const __m512 values = _mm512_maskz_loadu_ps(given, call.x + m + i * call.x_step);
        const __mmask16 bits = _mm512_cmp_ps_mask(values, least, _CMP_NLT_UQ);
        const __m512i bit = _mm512_set1_epi64(static_cast<long long>(1ull << (i - first)));
        low = _mm512_mask_or_epi64(low, static_cast<__mmask8>(bits), low, bit);
        high = _mm512_mask_or_epi64(high, static_cast<__mmask8>(bits >> 8), high, bit);
      }
      uint64_t* words = call.words + m * call.word_row + first / 64 * call.word_step;
      alignas(64) uint64_t joined[16];
      _mm512_store_si512(joined, low);
      _mm512_store_si512(joined + 8, high);
      for (int64_t r = 0; r < 16 && m + r < call.rows; ++r) {
        words[r * call.word_row] = joined[r];
      }
    }
  }
}

void threshold(const Thresholding& call) {
  if (call.x_step != 1) {
    return threshold_columns(call);
  }
  constexpr void (*kByVectors[])(const Thresholding&) = {threshold_rows<1>, threshold_rows<2>, threshold_rows<3>,
                                                         threshold_rows<4>};
  kByVectors[(call.count - 1) % 64 / 16](call);
}

void join(uint64_t* words, int64_t count, int64_t taps, int64_t distance, int64_t bits) {
  for (int64_t i = 0; i < count; i += 8) {
    __m512i joined = _mm512_setzero_si512();
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t left = count - i - tap * distance;
      const __mmask8 given = static_cast<__mmask8>(left >= 8 ? 0xff : left <= 0 ? 0 : (1 << left) - 1);
      const __m512i word = _mm512_maskz_loadu_epi64(given, words + i + tap * distance);
      joined = _mm512_or_si512(joined, _mm512_sll_epi64(word, _mm_cvtsi64_si128(tap * bits)));
    }
    _mm512_mask_storeu_epi64(words + i, static_cast<__mmask8>(count - i >= 8 ? 0xff : (1 << (count - i)) - 1), joined);
  }
}

// Adds the bits in which x and sign differ, where the mask has ones. Not the intrinsics: gcc 12 spills accumulators.
inline void add_differences(__m512i& total, __m512i x, __m512i sign) {
  __m512i difference;
  asm("vpxorq %2, %3, %1\n\tvpopcntq %1, %1\n\tvpaddq %1, %0, %0" : "+v"(total), "=&v"(difference) : "v"(x), "v"(sign));
}

inline void add_differences(__m512i& total, __m512i x, __m512i sign, __m512i mask) {
  __m512i difference = _mm512_ternarylogic_epi64(x, sign, mask, 0x28);  // (x ^ sign) & mask
  asm("vpopcntq %1, %1\n\tvpaddq %1, %0, %0" : "+v"(total), "+v"(difference));
}

// The differences where nothing has been added up.
inline __m512i differences_of(__m512i x, __m512i sign) { return _mm512_popcnt_epi64(_mm512_xor_si512(x, sign)); }

inline __m512i differences_of(__m512i x, __m512i sign, __m512i mask) {
  return _mm512_popcnt_epi64(_mm512_ternarylogic_epi64(x, sign, mask, 0x28));
}

inline __m512i joined_halves(__m512i first, __m512i second) {
  const __m512i low_halves = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_epi32(first, low_halves, second);
}

inline __m512 scaled(__m512i base, __m512i stepped, __m512 scale) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(base, stepped)), scale);
}

// The results of two neighbouring panels (or of one: then `real` has none of the second) for some rows.
template <int Rows>
inline void finish(const BinaryProducts& call, const __m512i (&first)[Rows], const __m512i (&second)[Rows], int64_t m,
                   int64_t n, __mmask16 real) {
  const __m512i step = _mm512_set1_epi32(call.step);
  const __m512 w_scale = _mm512_maskz_loadu_ps(real, call.w_scales + n);
  const bool has_bias = call.bias != nullptr;
  const __m512 bias = has_bias ? _mm512_maskz_loadu_ps(real, call.bias + n) : _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const __m512i base = _mm512_maskz_loadu_epi32(real, call.bases + call.rows[m + r].base + n);
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(call.x_scales[(m + r) * call.x_scale_row]), w_scale);
    const __m512 y = scaled(base, _mm512_mullo_epi32(joined_halves(first[r], second[r]), step), scale);
    _mm512_mask_storeu_ps(call.y + (m + r) * call.y_row + n, real, has_bias ? _mm512_add_ps(y, bias) : y);
  }
}

// The same for whole panels and one scale of x, of so few bits that 16 bits hold their count.
template <int Rows, bool HasBias>
inline void finish_fast(const BinaryProducts& call, const __m512i (&first)[Rows], const __m512i (&second)[Rows],
                         int64_t m, int64_t n) {
  const __m512i step = _mm512_set1_epi32(call.step);  // each lane a step and 0, by halves
  const int32_t* const bases = call.bases + n;
  const BinaryRow* const rows = call.rows + m;
  const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(*call.x_scales), _mm512_loadu_ps(call.w_scales + n));
  const __m512 bias = HasBias ? _mm512_loadu_ps(call.bias + n) : scale;
  const int64_t y_row = call.y_row;
  float* result = call.y + m * y_row + n;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r, result += y_row) {
    const __m512i base = _mm512_loadu_si512(bases + rows[r].base);
    const __m512 y = scaled(base, _mm512_madd_epi16(joined_halves(first[r], second[r]), step), scale);
    _mm512_storeu_ps(result, HasBias ? _mm512_add_ps(y, bias) : y);
  }
}

// Adds up some words of a plane of some rows of x and panels; `Begins`: with the first, where nothing is added up yet.
template <bool Begins, int Rows, int Panels, bool HasMasks>
inline __attribute__((always_inline)) void accumulate(const BinaryProducts& call, int64_t m, int64_t panel,
                                                      int64_t plane, __m512i (&total)[Panels][Rows]) {
  constexpr int64_t kStep = HasMasks ? 16 : 8;
  const int64_t between = call.words * kStep;
  const uint64_t* w = call.panels + panel * between;
  const uint64_t* rows[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    rows[r] = call.x + call.rows[m + r].word + plane * call.x_plane;
  }
  const int64_t* offset = call.offsets;
  const int64_t* const end = offset + call.words;
  const auto add_word = [&](auto add) __attribute__((always_inline)) {
    __m512i sign[Panels], mask[HasMasks ? Panels : 1];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      sign[p] = _mm512_loadu_si512(w + p * between);
      if (HasMasks) {
        mask[p] = _mm512_loadu_si512(w + p * between + 8);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m512i word = _mm512_set1_epi64(static_cast<long long>(rows[r][*offset]));
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        if constexpr (HasMasks) {
          add(total[p][r], word, sign[p], mask[p]);
        } else {
          add(total[p][r], word, sign[p]);
        }
      }
    }
    ++offset;
    w += kStep;
  };
  if (Begins) {
    add_word([](__m512i& sum, auto... bits) __attribute__((always_inline)) { sum = differences_of(bits...); });
  }
  while (offset != end) {
    add_word([](__m512i& sum, auto... bits) __attribute__((always_inline)) { add_differences(sum, bits...); });
  }
}

// Apart: a loop over tiles would keep in registers what the sums need them for.
template <int Rows, int Panels, bool HasMasks>
__attribute__((noinline)) void tile(const BinaryProducts& call, int64_t m, int64_t panel) {
  __m512i total[Panels][Rows];
  accumulate<true, Rows, Panels, HasMasks>(call, m, panel, 0, total);
  for (int64_t plane = 1; plane < call.planes; ++plane) {
    accumulate<false, Rows, Panels, HasMasks>(call, m, panel, plane, total);
  }
  const bool fast = Panels > 1 && call.outputs >= 8 * (panel + Panels) && call.x_scale_row == 0 &&
                    call.planes * call.words * 64 < (1 << 15);
#pragma GCC unroll 2
  for (int p = 0; p < Panels; p += 2) {
    constexpr bool kAlone = Panels == 1;
    const __m512i(&second)[Rows] = total[kAlone ? p : p + 1];
    const int64_t n = 8 * (panel + p);
    if (!fast) {
      const __mmask16 real = first_lanes(call.outputs - n);
      finish<Rows>(call, total[p], second, m, n, kAlone ? real & 0xff : real);
    } else if (call.bias != nullptr) {
      finish_fast<Rows, true>(call, total[p], second, m, n);
    } else {
      finish_fast<Rows, false>(call, total[p], second, m, n);
    }
  }
}

template <int Rows, int Panels, bool HasMasks>
void panels(const BinaryProducts& call, int64_t first_row, int64_t end_row, int64_t panel) {
  int64_t m = first_row;
  for (; m + Rows <= end_row; m += Rows) {
    tile<Rows, Panels, HasMasks>(call, m, panel);
  }
  for (; Rows > 4 && m + 4 <= end_row; m += 4) {
    tile<4, Panels, HasMasks>(call, m, panel);
  }
  for (; m + 2 <= end_row; m += 2) {
    tile<2, Panels, HasMasks>(call, m, panel);
  }
  for (; m < end_row; ++m) {
    tile<1, Panels, HasMasks>(call, m, panel);
  }
}

template <bool HasMasks>
void all_panels(const BinaryProducts& call, int64_t first_row, int64_t end_row, int64_t first_panel,
                int64_t end_panel) {
  int64_t panel = first_panel;
  for (; panel + 4 <= end_panel; panel += 4) {
    panels<HasMasks ? 4 : 6, 4, HasMasks>(call, first_row, end_row, panel);
  }
  for (; panel + 2 <= end_panel; panel += 2) {
    panels<8, 2, HasMasks>(call, first_row, end_row, panel);
  }
  for (; panel < end_panel; ++panel) {
    panels<8, 1, HasMasks>(call, first_row, end_row, panel);
  }
}

void products(const BinaryProducts& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  const auto run = call.has_masks ? all_panels<true> : all_panels<false>;
  run(call, first_row, end_row, first_panel, end_panel);
}

}  // namespace

const BinaryKernels avx512_binary = {threshold, join, products};

}  // namespace subbyte
