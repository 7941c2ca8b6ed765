// Rescaling by AVX-512. A multiplication and an addition, not one instruction for both: that rounds once.
#include <immintrin.h>

#include "../kernels/rescale.h"

namespace subbyte {
namespace {

__m512 sixteen(const float* parameters, int64_t i, __mmask16 given, int64_t stride) {
  return stride == 0 ? _mm512_set1_ps(*parameters) : _mm512_maskz_loadu_ps(given, parameters + i);
}

void rescale(float* sums, int64_t count, const float* scales, const float* biases, int64_t stride) {
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 given = static_cast<__mmask16>(count - i < 16 ? (1u << (count - i)) - 1 : 0xffff);
    const __m512 sum = _mm512_maskz_loadu_ps(given, sums + i);
    const __m512 product = _mm512_mul_ps(sum, sixteen(scales, i, given, stride));
    _mm512_mask_storeu_ps(sums + i, given, _mm512_add_ps(product, sixteen(biases, i, given, stride)));
  }
}

}  // namespace

const RescaleKernels avx512_rescale = {rescale};

}  // namespace subbyte
