// Quantizing by AVX-512.
#include <immintrin.h>

#include "../kernels/quantize.h"

namespace subbyte {
namespace {

constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

__mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>(count < 16 ? (1u << count) - 1 : 0xffff); }

// The nearest whole numbers, ties to even, of quotients x / scale: by the faster x * (1 / scale), where that is sure to
// give the same.
//
// Below 512 the product is within 2^-13 of the quotient: 2^9 times three roundings of 2^-24. So it decides where it is
// further than that from the middle of two whole numbers. From 512 on every code is the lowest or the highest, whichever
// of the two is rounded.
struct Nearest {
  __m512 scale, inverse;
  bool is_ordinary;  // neither the inverse nor a product with it leaves the normal numbers

  explicit Nearest(float of_scale)
      : scale(_mm512_set1_ps(of_scale)), inverse(_mm512_set1_ps(1.0f / of_scale)),
        is_ordinary(of_scale > 0x1p-100f && of_scale < 0x1p100f) {}

  inline void of(const __m512 (&x)[4], __m512 (&rounded)[4]) const {
    __m512 farthest = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 product = _mm512_mul_ps(x[i], inverse);
      rounded[i] = _mm512_roundscale_ps(product, kRound);
      farthest = _mm512_max_ps(_mm512_abs_ps(_mm512_sub_ps(product, rounded[i])), farthest);  // a NaN is passed over
    }
    const __mmask16 unsure = _mm512_cmp_ps_mask(farthest, _mm512_set1_ps(0.5f - 0x1p-13f), _CMP_GT_OQ);
    if (__builtin_expect(unsure != 0 || !is_ordinary, 0)) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        rounded[i] = _mm512_roundscale_ps(_mm512_div_ps(x[i], scale), kRound);
      }
    }
  }
};

// Quantizing, up to the last step: whole numbers inside the range of the signed bytes.
struct Quantizing {
  Nearest nearest;
  __m512 zero, low, high;
  __mmask16 any_nan = 0;

  explicit Quantizing(const Affine& affine)
      : nearest(affine.scale), zero(shifted(affine.zero_point, affine)), low(shifted(affine.low, affine)),
        high(shifted(affine.high, affine)) {}

  inline void of(const __m512 (&x)[4], __m512i (&codes)[4]) {
    __m512 rounded[4];
    nearest.of(x, rounded);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      any_nan |= _mm512_cmp_ps_mask(x[i], x[i], _CMP_UNORD_Q);
      const __m512 code = _mm512_add_ps(rounded[i], zero);
      codes[i] = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(code, low), high));  // of a NaN: low
    }
  }

 private:
  static __m512 shifted(int32_t code, const Affine& affine) {
    return _mm512_set1_ps(static_cast<float>(code - affine.shift));
  }
};

// The lanes of vector i of four that hold one of the first `count` values.
inline __mmask16 lanes_of(int i, int64_t count) {
  return count >= 16 * (i + 1) ? 0xffff : count <= 16 * i ? 0 : first_lanes(count - 16 * i);
}

bool quantize(const float* x, int64_t count, const Affine& affine, int8_t* codes) {
  Quantizing quantizing(affine);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const auto bytes_of = [&](const __m512 (&values)[4]) __attribute__((always_inline)) {
    __m512i four[4];
    quantizing.of(values, four);
    // Packing interleaves quarters of its operands.
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(four[0], four[1]), _mm512_packs_epi32(four[2], four[3]));
    return _mm512_permutexvar_epi32(order, bytes);
  };
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    _mm512_storeu_si512(codes + i, bytes_of({_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16),
                                             _mm512_loadu_ps(x + i + 32), _mm512_loadu_ps(x + i + 48)}));
  }
  if (i < count) {
    const int64_t rest = count - i;
    _mm512_mask_storeu_epi8(codes + i, (1ull << rest) - 1,
                            bytes_of({_mm512_maskz_loadu_ps(lanes_of(0, rest), x + i),
                                      _mm512_maskz_loadu_ps(lanes_of(1, rest), x + i + 16),
                                      _mm512_maskz_loadu_ps(lanes_of(2, rest), x + i + 32),
                                      _mm512_maskz_loadu_ps(lanes_of(3, rest), x + i + 48)}));
  }
  return quantizing.any_nan != 0;
}

// Sixteen values, or the last few: what grids they are on, and where.
struct Sixteen {
  __m512 scale, low, high, quotient, steps;

  Sixteen(const float* x, int64_t i, __mmask16 given, const Grids& grids)
      : scale(of(grids.scales, i, given, grids.stride)),
        low(of(grids.lows, i, given, grids.stride)),
        high(of(grids.highs, i, given, grids.stride)),
        quotient(_mm512_div_ps(_mm512_maskz_loadu_ps(given, x + i), scale)) {
    const __m512 rounded = _mm512_roundscale_ps(quotient, kRound);
    steps = _mm512_min_ps(high, _mm512_max_ps(low, rounded));  // in this order a NaN stays one
  }

 private:
  static __m512 of(const float* parameters, int64_t i, __mmask16 given, int64_t stride) {
    return stride == 0 ? _mm512_set1_ps(*parameters) : _mm512_maskz_loadu_ps(given, parameters + i);
  }
};

void snap(const float* x, int64_t count, const Grids& grids, float* steps) {
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 given = first_lanes(count - i);
    _mm512_mask_storeu_ps(steps + i, given, Sixteen(x, i, given, grids).steps);
  }
}

void fake_quantize(const float* x, int64_t count, const Grids& grids, float* values) {
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 given = first_lanes(count - i);
    const Sixteen at(x, i, given, grids);
    _mm512_mask_storeu_ps(values + i, given, _mm512_mul_ps(at.steps, at.scale));
  }
}

bool codes(const float* x, int64_t count, const Grids& grids, int32_t first, uint8_t* codes) {
  __mmask16 any_nan = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 given = first_lanes(count - i);
    const Sixteen at(x, i, given, grids);
    const __mmask16 is_nan = _mm512_mask_cmp_ps_mask(given, at.steps, at.steps, _CMP_UNORD_Q);
    any_nan |= is_nan;
    const __mmask16 has_code = static_cast<__mmask16>(given & ~is_nan);
    const __m512i above = _mm512_maskz_cvtps_epi32(has_code, _mm512_sub_ps(at.steps, at.low));
    const __m512i code = _mm512_add_epi32(above, _mm512_set1_epi32(first));
    _mm_mask_storeu_epi8(codes + i, given, _mm512_cvtepi32_epi8(code));
  }
  return any_nan != 0;
}

__m512d low_half(__m512 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
__m512d high_half(__m512 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }

// One sum for each of sixteen lanes.
struct LaneSums {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();

  void add(__m512 terms) {
    low = _mm512_add_pd(low, low_half(terms));
    high = _mm512_add_pd(high, high_half(terms));
  }

  void add_to(double* sum) const {
    double lanes[kLanes];
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
    for (const double lane : lanes) {
      *sum += lane;
    }
  }
};

void add_each(double* sums, __m512 terms, __mmask16 given) {
  const __mmask8 low = static_cast<__mmask8>(given), high = static_cast<__mmask8>(given >> 8);
  _mm512_mask_storeu_pd(sums, low, _mm512_add_pd(_mm512_maskz_loadu_pd(low, sums), low_half(terms)));
  _mm512_mask_storeu_pd(sums + 8, high, _mm512_add_pd(_mm512_maskz_loadu_pd(high, sums + 8), high_half(terms)));
}

void gradients(const Gradients& run, int64_t count, const Grids& grids) {
  const __m512 reach = _mm512_set1_ps(kReach), nothing = _mm512_setzero_ps();
  LaneSums scale_sums, zero_sums;
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 given = first_lanes(count - i);
    const Sixteen at(run.x, i, given, grids);
    const __m512 x = _mm512_maskz_loadu_ps(given, run.x + i), y = _mm512_maskz_loadu_ps(given, run.y + i);
    const __m512 distance = _mm512_abs_ps(_mm512_sub_ps(x, _mm512_mul_ps(at.steps, at.scale)));
    const __mmask16 inside = _mm512_cmp_ps_mask(distance, _mm512_mul_ps(at.scale, reach), _CMP_LE_OQ);
    _mm512_mask_storeu_ps(run.of_x + i, given, _mm512_maskz_mov_ps(inside, y));
    const __m512 slope = _mm512_mask_sub_ps(at.steps, inside, at.steps, at.quotient);
    const __m512 of_scale = _mm512_maskz_mul_ps(given, y, slope);
    const __mmask16 outside = static_cast<__mmask16>(given & ~inside);
    const __m512 of_zero = _mm512_maskz_sub_ps(outside, nothing, _mm512_mul_ps(y, at.scale));
    if (grids.stride == 0) {
      scale_sums.add(of_scale);
      zero_sums.add(of_zero);
    } else {
      add_each(run.of_scale + i, of_scale, given);
      add_each(run.of_zero + i, of_zero, given);
    }
  }
  if (grids.stride == 0) {
    scale_sums.add_to(run.of_scale);
    zero_sums.add_to(run.of_zero);
  }
}

Range range(const float* x, int64_t count) {
  __m512 minimum = _mm512_set1_ps(x[0]), maximum = minimum;
  __mmask16 any_nan = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 values = _mm512_mask_loadu_ps(minimum, first_lanes(count - i), x + i);
    any_nan |= _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    minimum = _mm512_min_ps(values, minimum);
    maximum = _mm512_max_ps(values, maximum);
  }
  if (any_nan != 0) {
    return {__builtin_nanf(""), __builtin_nanf("")};
  }
  return {_mm512_reduce_min_ps(minimum), _mm512_reduce_max_ps(maximum)};
}

}  // namespace

const QuantizeKernels avx512_quantize = {quantize, snap, fake_quantize, codes, gradients, range};

}  // namespace subbyte
