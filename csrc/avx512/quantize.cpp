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

// The grids of sixteen values.
struct Grid {
  __m512 scale, low, high;
};

// Those of a run on one grid. It is read once: a load after each store would wait for it.
struct OneGrid {
  Grid grid;

  explicit OneGrid(const Grids& grids)
      : grid{_mm512_set1_ps(*grids.scales), _mm512_set1_ps(*grids.lows), _mm512_set1_ps(*grids.highs)} {}

  inline Grid of(int64_t, __mmask16) const { return grid; }
};

// Those of values that each have their own.
struct OwnGrids {
  Grids grids;

  inline Grid of(int64_t i, __mmask16 given) const {
    return {_mm512_maskz_loadu_ps(given, grids.scales + i), _mm512_maskz_loadu_ps(given, grids.lows + i),
            _mm512_maskz_loadu_ps(given, grids.highs + i)};
  }
};

// Calls work(i, given) for sixteen values after another; of the last there may be fewer.
template <typename Work>
inline void each_sixteen(int64_t count, const Work& work) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    work(i, static_cast<__mmask16>(0xffff));
  }
  if (i < count) {
    work(i, first_lanes(count - i));
  }
}

// Sixteen values, or the last few: what grids they are on, and where.
struct Sixteen {
  Grid grid;
  __m512 quotient, steps;

  inline Sixteen(__m512 x, const Grid& of) : grid(of), quotient(_mm512_div_ps(x, of.scale)) {
    const __m512 rounded = _mm512_roundscale_ps(quotient, kRound);
    steps = _mm512_min_ps(grid.high, _mm512_max_ps(grid.low, rounded));  // in this order a NaN stays one
  }
};

template <typename Of>
void snap_by(const float* x, int64_t count, const Of& grids, float* steps) {
  each_sixteen(count, [&](int64_t i, __mmask16 given) __attribute__((always_inline)) {
    const Sixteen at(_mm512_maskz_loadu_ps(given, x + i), grids.of(i, given));
    _mm512_mask_storeu_ps(steps + i, given, at.steps);
  });
}

void snap(const float* x, int64_t count, const Grids& grids, float* steps) {
  grids.stride == 0 ? snap_by(x, count, OneGrid(grids), steps) : snap_by(x, count, OwnGrids{grids}, steps);
}

template <typename Of>
void fake_quantize_by(const float* x, int64_t count, const Of& grids, float* values) {
  each_sixteen(count, [&](int64_t i, __mmask16 given) __attribute__((always_inline)) {
    const Sixteen at(_mm512_maskz_loadu_ps(given, x + i), grids.of(i, given));
    _mm512_mask_storeu_ps(values + i, given, _mm512_mul_ps(at.steps, at.grid.scale));
  });
}

void fake_quantize(const float* x, int64_t count, const Grids& grids, float* values) {
  grids.stride == 0 ? fake_quantize_by(x, count, OneGrid(grids), values)
                    : fake_quantize_by(x, count, OwnGrids{grids}, values);
}

template <typename Of>
bool codes_by(const float* x, int64_t count, const Of& grids, int32_t first, uint8_t* codes) {
  __mmask16 any_nan = 0;
  each_sixteen(count, [&](int64_t i, __mmask16 given) __attribute__((always_inline)) {
    const Sixteen at(_mm512_maskz_loadu_ps(given, x + i), grids.of(i, given));
    const __mmask16 is_nan = _mm512_mask_cmp_ps_mask(given, at.steps, at.steps, _CMP_UNORD_Q);
    any_nan |= is_nan;
    const __mmask16 has_code = static_cast<__mmask16>(given & ~is_nan);
    const __m512i above = _mm512_maskz_cvtps_epi32(has_code, _mm512_sub_ps(at.steps, at.grid.low));
    const __m512i code = _mm512_add_epi32(above, _mm512_set1_epi32(first));
    _mm_mask_storeu_epi8(codes + i, given, _mm512_cvtepi32_epi8(code));
  });
  return any_nan != 0;
}

bool codes(const float* x, int64_t count, const Grids& grids, int32_t first, uint8_t* codes) {
  return grids.stride == 0 ? codes_by(x, count, OneGrid(grids), first, codes)
                           : codes_by(x, count, OwnGrids{grids}, first, codes);
}

__m512d low_half(__m512 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
__m512d high_half(__m512 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }

// One sum for each of sixteen lanes, of values on one grid.
struct LaneSums {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();

  inline void add(int64_t, __m512 terms, __mmask16) {
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

// One sum for each value.
struct OwnSums {
  double* sums;

  inline void add(int64_t i, __m512 terms, __mmask16 given) const {
    const __mmask8 low = static_cast<__mmask8>(given), high = static_cast<__mmask8>(given >> 8);
    double *lower = sums + i, *upper = lower + 8;
    _mm512_mask_storeu_pd(lower, low, _mm512_add_pd(_mm512_maskz_loadu_pd(low, lower), low_half(terms)));
    _mm512_mask_storeu_pd(upper, high, _mm512_add_pd(_mm512_maskz_loadu_pd(high, upper), high_half(terms)));
  }
};

template <typename Of, typename Sums>
void gradients_by(const Gradients& run, int64_t count, const Of& grids, Sums& scale_sums, Sums& zero_sums) {
  const __m512 slack = _mm512_set1_ps(kSlack), nothing = _mm512_setzero_ps(), above = _mm512_set1_ps(run.above);
  const float *from_x = run.x, *from_y = run.y;
  float* to = run.of_x;
  each_sixteen(count, [&](int64_t i, __mmask16 given) __attribute__((always_inline)) {
    const __m512 x = _mm512_maskz_loadu_ps(given, from_x + i), y = _mm512_maskz_loadu_ps(given, from_y + i);
    const Sixteen at(x, grids.of(i, given));
    const __mmask16 is_not_below = _mm512_cmp_ps_mask(at.quotient, _mm512_sub_ps(at.grid.low, slack), _CMP_GE_OQ);
    const __m512 end = _mm512_add_ps(at.grid.high, slack);
    const __mmask16 inside = _mm512_mask_cmp_ps_mask(is_not_below, at.quotient, end, _CMP_LE_OQ);
    const __mmask16 passes = _mm512_mask_cmp_ps_mask(inside, x, above, _CMP_GT_OQ);
    _mm512_mask_storeu_ps(to + i, given, _mm512_maskz_mov_ps(passes, y));
    const __m512 slope = _mm512_mask_sub_ps(at.steps, inside, at.steps, at.quotient);
    scale_sums.add(i, _mm512_maskz_mul_ps(given, y, slope), given);
    const __mmask16 outside = static_cast<__mmask16>(given & ~inside);
    if (outside != 0) {  // seldom, and half of the work
      zero_sums.add(i, _mm512_maskz_sub_ps(outside, nothing, _mm512_mul_ps(y, at.grid.scale)), given);
    }
  });
}

void gradients(const Gradients& run, int64_t count, const Grids& grids) {
  if (grids.stride == 0) {
    LaneSums scale_sums, zero_sums;
    gradients_by(run, count, OneGrid(grids), scale_sums, zero_sums);
    scale_sums.add_to(run.of_scale);
    zero_sums.add_to(run.of_zero);
  } else {
    OwnSums scale_sums{run.of_scale}, zero_sums{run.of_zero};
    gradients_by(run, count, OwnGrids{grids}, scale_sums, zero_sums);
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
