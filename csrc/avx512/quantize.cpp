// Quantizing by AVX-512.
#include <immintrin.h>

#include "../kernels/quantize.h"

namespace subbyte {
namespace {

bool quantize(const float* x, int64_t count, const Affine& affine, int8_t* codes) {
  const __m512 scale = _mm512_set1_ps(affine.scale), zero = _mm512_set1_ps(static_cast<float>(affine.zero_point));
  const __m512 low = _mm512_set1_ps(static_cast<float>(affine.low));
  const __m512 high = _mm512_set1_ps(static_cast<float>(affine.high));
  const __m512i shift = _mm512_set1_epi32(affine.shift);
  __mmask16 any_nan = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 given = static_cast<__mmask16>(count - i < 16 ? (1u << (count - i)) - 1 : 0xffff);
    const __m512 quotient = _mm512_div_ps(_mm512_maskz_loadu_ps(given, x + i), scale);
    const __m512 rounded = _mm512_roundscale_ps(quotient, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 code = _mm512_add_ps(rounded, zero);
    any_nan |= _mm512_mask_cmp_ps_mask(given, code, code, _CMP_UNORD_Q);
    const __m512 inside = _mm512_min_ps(_mm512_max_ps(code, low), high);  // of a NaN: low
    const __m512i shifted = _mm512_sub_epi32(_mm512_cvtps_epi32(inside), shift);
    _mm_mask_storeu_epi8(codes + i, given, _mm512_cvtepi32_epi8(shifted));
  }
  return any_nan != 0;
}

}  // namespace

const QuantizeKernels avx512_quantize = {quantize};

}  // namespace subbyte
