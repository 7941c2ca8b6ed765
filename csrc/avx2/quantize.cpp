// Quantizing by AVX2.
#include <immintrin.h>

#include "../kernels/quantize.h"

namespace subbyte {
namespace {

constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

bool quantize(const float* x, int64_t count, const Affine& affine, int8_t* codes) {
  const __m256 scale = _mm256_set1_ps(affine.scale), zero = _mm256_set1_ps(static_cast<float>(affine.zero_point));
  const __m256 low = _mm256_set1_ps(static_cast<float>(affine.low));
  const __m256 high = _mm256_set1_ps(static_cast<float>(affine.high));
  const __m256i shift = _mm256_set1_epi32(affine.shift);
  __m256 any_nan = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 quotient = _mm256_div_ps(_mm256_loadu_ps(x + i), scale);
    const __m256 code = _mm256_add_ps(_mm256_round_ps(quotient, kRound), zero);
    any_nan = _mm256_or_ps(any_nan, _mm256_cmp_ps(code, code, _CMP_UNORD_Q));
    const __m256 inside = _mm256_min_ps(_mm256_max_ps(code, low), high);  // of a NaN: low
    const __m256i shifted = _mm256_sub_epi32(_mm256_cvtps_epi32(inside), shift);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packs_epi16(words, words));
  }
  const bool rest_has_nan = i < count && reference_quantize.quantize(x + i, count - i, affine, codes + i);
  return rest_has_nan || _mm256_movemask_ps(any_nan) != 0;
}

// The grids of eight values.
struct Grid {
  __m256 scale, low, high;
};

// Those of a run on one grid. It is read once: a load after each store would wait for it.
struct OneGrid {
  Grid grid;

  explicit OneGrid(const Grids& grids)
      : grid{_mm256_set1_ps(*grids.scales), _mm256_set1_ps(*grids.lows), _mm256_set1_ps(*grids.highs)} {}

  inline Grid of(int64_t) const { return grid; }
};

// Those of values that each have their own.
struct OwnGrids {
  Grids grids;

  inline Grid of(int64_t i) const {
    return {_mm256_loadu_ps(grids.scales + i), _mm256_loadu_ps(grids.lows + i), _mm256_loadu_ps(grids.highs + i)};
  }
};

// Eight values: what grids they are on, and where.
struct Eight {
  Grid grid;
  __m256 quotient, steps;

  inline Eight(__m256 x, const Grid& of) : grid(of), quotient(_mm256_div_ps(x, of.scale)) {
    const __m256 rounded = _mm256_round_ps(quotient, kRound);
    steps = _mm256_min_ps(grid.high, _mm256_max_ps(grid.low, rounded));  // in this order a NaN stays one
  }
};

// Calls work(i, grid) for eight values after another, and returns where those are that are left.
template <typename Of, typename Work>
inline int64_t each_eight(int64_t count, const Of& grids, const Work& work) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    work(i, grids.of(i));
  }
  return i;
}

template <typename Work>
inline int64_t each_eight_on(const Grids& grids, int64_t count, const Work& work) {
  return grids.stride == 0 ? each_eight(count, OneGrid(grids), work) : each_eight(count, OwnGrids{grids}, work);
}

void snap(const float* x, int64_t count, const Grids& grids, float* steps) {
  const int64_t i = each_eight_on(grids, count, [&](int64_t at, const Grid& grid) __attribute__((always_inline)) {
    _mm256_storeu_ps(steps + at, Eight(_mm256_loadu_ps(x + at), grid).steps);
  });
  reference_quantize.snap(x + i, count - i, grids_from(grids, i), steps + i);
}

void fake_quantize(const float* x, int64_t count, const Grids& grids, float* values) {
  const int64_t i = each_eight_on(grids, count, [&](int64_t at, const Grid& grid) __attribute__((always_inline)) {
    _mm256_storeu_ps(values + at, _mm256_mul_ps(Eight(_mm256_loadu_ps(x + at), grid).steps, grid.scale));
  });
  reference_quantize.fake_quantize(x + i, count - i, grids_from(grids, i), values + i);
}

bool codes(const float* x, int64_t count, const Grids& grids, int32_t first, uint8_t* codes) {
  __m256 any_nan = _mm256_setzero_ps();
  const int64_t i = each_eight_on(grids, count, [&](int64_t at, const Grid& grid) __attribute__((always_inline)) {
    const __m256 steps = Eight(_mm256_loadu_ps(x + at), grid).steps;
    const __m256 is_nan = _mm256_cmp_ps(steps, steps, _CMP_UNORD_Q);
    any_nan = _mm256_or_ps(any_nan, is_nan);
    const __m256i above = _mm256_cvtps_epi32(_mm256_andnot_ps(is_nan, _mm256_sub_ps(steps, grid.low)));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(above), _mm256_extracti128_si256(above, 1));
    const __m128i bytes = _mm_add_epi8(_mm_packus_epi16(words, words), _mm_set1_epi8(static_cast<char>(first)));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + at), bytes);
  });
  const bool rest_has_nan = reference_quantize.codes(x + i, count - i, grids_from(grids, i), first, codes + i);
  return rest_has_nan || _mm256_movemask_ps(any_nan) != 0;
}

__m256d low_half(__m256 x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
__m256d high_half(__m256 x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

// What eight values on their way back give.
struct Terms {
  __m256 of_x, of_scale, of_zero;

  inline Terms(__m256 x, __m256 y, __m256 above, const Grid& grid) {
    const __m256 nothing = _mm256_setzero_ps(), slack = _mm256_set1_ps(kSlack);
    const Eight at(x, grid);
    const __m256 is_not_below = _mm256_cmp_ps(at.quotient, _mm256_sub_ps(grid.low, slack), _CMP_GE_OQ);
    const __m256 is_not_above = _mm256_cmp_ps(at.quotient, _mm256_add_ps(grid.high, slack), _CMP_LE_OQ);
    const __m256 inside = _mm256_and_ps(is_not_below, is_not_above);
    of_x = _mm256_and_ps(_mm256_and_ps(inside, _mm256_cmp_ps(x, above, _CMP_GT_OQ)), y);
    of_scale = _mm256_mul_ps(y, _mm256_blendv_ps(at.steps, _mm256_sub_ps(at.steps, at.quotient), inside));
    of_zero = _mm256_andnot_ps(inside, _mm256_sub_ps(nothing, _mm256_mul_ps(y, grid.scale)));
  }
};

void add_eight(double* sums, __m256 terms) {
  _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), low_half(terms)));
  _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), high_half(terms)));
}

// Values on one grid: those left after the last whole eight keep their lanes.
void gradients_of_one(const Gradients& run, int64_t count, const Grids& grids) {
  const Gradients from = run;
  const __m256 above = _mm256_set1_ps(run.above);
  double scale_lanes[kLanes] = {}, zero_lanes[kLanes] = {};
  int64_t i = each_eight(count, OneGrid(grids), [&](int64_t at, const Grid& grid) __attribute__((always_inline)) {
    const Terms found(_mm256_loadu_ps(from.x + at), _mm256_loadu_ps(from.y + at), above, grid);
    _mm256_storeu_ps(from.of_x + at, found.of_x);
    add_eight(scale_lanes + at % kLanes, found.of_scale);
    add_eight(zero_lanes + at % kLanes, found.of_zero);
  });
  for (; i < count; ++i) {
    const int64_t lane = i % kLanes;
    reference_quantize.gradients({run.x + i, run.y + i, run.of_x + i, scale_lanes + lane, zero_lanes + lane, run.above}, 1, grids);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    *run.of_scale += scale_lanes[lane];
    *run.of_zero += zero_lanes[lane];
  }
}

void gradients(const Gradients& run, int64_t count, const Grids& grids) {
  if (grids.stride == 0) {
    gradients_of_one(run, count, grids);
    return;
  }
  const __m256 above = _mm256_set1_ps(run.above);
  const int64_t i = each_eight(count, OwnGrids{grids}, [&](int64_t at, const Grid& grid) __attribute__((always_inline)) {
    const Terms found(_mm256_loadu_ps(run.x + at), _mm256_loadu_ps(run.y + at), above, grid);
    _mm256_storeu_ps(run.of_x + at, found.of_x);
    add_eight(run.of_scale + at, found.of_scale);
    add_eight(run.of_zero + at, found.of_zero);
  });
  const Gradients rest = {run.x + i, run.y + i, run.of_x + i, run.of_scale + i, run.of_zero + i, run.above};
  reference_quantize.gradients(rest, count - i, grids_from(grids, i));
}

Range range(const float* x, int64_t count) {
  if (count < 8) {
    return reference_quantize.range(x, count);
  }
  __m256 minimum = _mm256_loadu_ps(x), maximum = minimum, any_nan = _mm256_setzero_ps();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 values = _mm256_loadu_ps(x + (i + 8 <= count ? i : count - 8));  // the last eight, some of them twice
    any_nan = _mm256_or_ps(any_nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    minimum = _mm256_min_ps(values, minimum);
    maximum = _mm256_max_ps(values, maximum);
  }
  if (_mm256_movemask_ps(any_nan) != 0) {
    return {__builtin_nanf(""), __builtin_nanf("")};
  }
  float lanes[16];
  _mm256_storeu_ps(lanes, minimum);
  _mm256_storeu_ps(lanes + 8, maximum);
  return {reference_quantize.range(lanes, 8).minimum, reference_quantize.range(lanes + 8, 8).maximum};
}

}  // namespace

const QuantizeKernels avx2_quantize = {quantize, snap, fake_quantize, codes, gradients, range};

}  // namespace subbyte
