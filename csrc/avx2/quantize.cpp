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

// Eight values: what grids they are on, and where.
struct Eight {
  __m256 x, scale, low, high, quotient, steps;

  Eight(const float* values, int64_t i, const Grids& grids)
      : x(_mm256_loadu_ps(values + i)),
        scale(of(grids.scales, i, grids.stride)),
        low(of(grids.lows, i, grids.stride)),
        high(of(grids.highs, i, grids.stride)),
        quotient(_mm256_div_ps(x, scale)) {
    const __m256 rounded = _mm256_round_ps(quotient, kRound);
    steps = _mm256_min_ps(high, _mm256_max_ps(low, rounded));  // in this order a NaN stays one
  }

 private:
  static __m256 of(const float* parameters, int64_t i, int64_t stride) {
    return stride == 0 ? _mm256_set1_ps(*parameters) : _mm256_loadu_ps(parameters + i);
  }
};

void snap(const float* x, int64_t count, const Grids& grids, float* steps) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(steps + i, Eight(x, i, grids).steps);
  }
  reference_quantize.snap(x + i, count - i, grids_from(grids, i), steps + i);
}

void fake_quantize(const float* x, int64_t count, const Grids& grids, float* values) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const Eight at(x, i, grids);
    _mm256_storeu_ps(values + i, _mm256_mul_ps(at.steps, at.scale));
  }
  reference_quantize.fake_quantize(x + i, count - i, grids_from(grids, i), values + i);
}

bool codes(const float* x, int64_t count, const Grids& grids, int32_t first, uint8_t* codes) {
  __m256 any_nan = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const Eight at(x, i, grids);
    const __m256 is_nan = _mm256_cmp_ps(at.steps, at.steps, _CMP_UNORD_Q);
    any_nan = _mm256_or_ps(any_nan, is_nan);
    const __m256i above = _mm256_cvtps_epi32(_mm256_andnot_ps(is_nan, _mm256_sub_ps(at.steps, at.low)));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(above), _mm256_extracti128_si256(above, 1));
    const __m128i bytes = _mm_add_epi8(_mm_packus_epi16(words, words), _mm_set1_epi8(static_cast<char>(first)));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), bytes);
  }
  const bool rest_has_nan = reference_quantize.codes(x + i, count - i, grids_from(grids, i), first, codes + i);
  return rest_has_nan || _mm256_movemask_ps(any_nan) != 0;
}

__m256d low_half(__m256 x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
__m256d high_half(__m256 x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

void add_eight(double* sums, __m256 terms) {
  _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), low_half(terms)));
  _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), high_half(terms)));
}

// Of the eight values from i on.
void add_gradients(const Gradients& run, int64_t i, const Grids& grids, double* scale_sums, double* zero_sums) {
  const __m256 nothing = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
  const Eight at(run.x, i, grids);
  const __m256 y = _mm256_loadu_ps(run.y + i);
  const __m256 distance = _mm256_andnot_ps(sign, _mm256_sub_ps(at.x, _mm256_mul_ps(at.steps, at.scale)));
  const __m256 inside = _mm256_cmp_ps(distance, _mm256_mul_ps(at.scale, _mm256_set1_ps(kReach)), _CMP_LE_OQ);
  _mm256_storeu_ps(run.of_x + i, _mm256_and_ps(inside, y));
  const __m256 slope = _mm256_blendv_ps(at.steps, _mm256_sub_ps(at.steps, at.quotient), inside);
  add_eight(scale_sums, _mm256_mul_ps(y, slope));
  add_eight(zero_sums, _mm256_andnot_ps(inside, _mm256_sub_ps(nothing, _mm256_mul_ps(y, at.scale))));
}

// Values on one grid: those left after the last whole sixteen keep their lanes.
void gradients_of_one(const Gradients& run, int64_t count, const Grids& grids) {
  double scale_lanes[kLanes] = {}, zero_lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const int64_t lane = i % kLanes;
    add_gradients(run, i, grids, scale_lanes + lane, zero_lanes + lane);
  }
  for (; i < count; ++i) {
    const Gradients one = {run.x + i, run.y + i, run.of_x + i, scale_lanes + i % kLanes, zero_lanes + i % kLanes};
    reference_quantize.gradients(one, 1, grids);
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
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    add_gradients(run, i, grids, run.of_scale + i, run.of_zero + i);
  }
  const Gradients rest = {run.x + i, run.y + i, run.of_x + i, run.of_scale + i, run.of_zero + i};
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
