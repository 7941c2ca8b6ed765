// Rescaling in plain C++.
#include "../kernels/rescale.h"

namespace subbyte {
namespace {

void rescale(float* sums, int64_t count, const float* scales, const float* biases, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    sums[i] = sums[i] * scales[i * stride] + biases[i * stride];
  }
}

}  // namespace

const RescaleKernels reference_rescale = {rescale};

}  // namespace subbyte
