// Quantizing by AVX2.
#include <immintrin.h>

#include "../kernels/quantize.h"

namespace subbyte {
namespace {

bool quantize(const float* x, int64_t count, const Affine& affine, int8_t* codes) {
  const __m256 scale = _mm256_set1_ps(affine.scale), zero = _mm256_set1_ps(static_cast<float>(affine.zero_point));
  const __m256 low = _mm256_set1_ps(static_cast<float>(affine.low));
  const __m256 high = _mm256_set1_ps(static_cast<float>(affine.high));
  const __m256i shift = _mm256_set1_epi32(affine.shift);
  __m256 any_nan = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 quotient = _mm256_div_ps(_mm256_loadu_ps(x + i), scale);
    const __m256 rounded = _mm256_round_ps(quotient, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 code = _mm256_add_ps(rounded, zero);
    any_nan = _mm256_or_ps(any_nan, _mm256_cmp_ps(code, code, _CMP_UNORD_Q));
    const __m256 inside = _mm256_min_ps(_mm256_max_ps(code, low), high);  // of a NaN: low
    const __m256i shifted = _mm256_sub_epi32(_mm256_cvtps_epi32(inside), shift);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packs_epi16(words, words));
  }
  const bool rest_has_nan = i < count && reference_quantize.quantize(x + i, count - i, affine, codes + i);
  return rest_has_nan || _mm256_movemask_ps(any_nan) != 0;
}

}  // namespace

const QuantizeKernels avx2_quantize = {quantize};

}  // namespace subbyte
