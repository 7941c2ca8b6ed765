// Rescaling by AVX2. A multiplication and an addition, not one instruction for both: that rounds once.
#include <immintrin.h>

#include "../kernels/rescale.h"

namespace subbyte {
namespace {

__m256 eight(const float* parameters, int64_t i, int64_t stride) {
  return stride == 0 ? _mm256_set1_ps(*parameters) : _mm256_loadu_ps(parameters + i);
}

void rescale(float* sums, int64_t count, const float* scales, const float* biases, int64_t stride) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 product = _mm256_mul_ps(_mm256_loadu_ps(sums + i), eight(scales, i, stride));
    _mm256_storeu_ps(sums + i, _mm256_add_ps(product, eight(biases, i, stride)));
  }
  reference_rescale.rescale(sums + i, count - i, scales + i * stride, biases + i * stride, stride);
}

}  // namespace

const RescaleKernels avx2_rescale = {rescale};

}  // namespace subbyte
