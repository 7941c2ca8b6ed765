// Rescaling against the reference.
#include "agreement.h"

namespace conformance {

bool rescaling_agrees(const subbyte::Kernels& kernels, Random& random) {
  const std::int64_t count = between(random, 0, 100), stride = between(random, 0, 1);
  const auto draw = [&](std::int64_t size) {
    std::vector<float> drawn(static_cast<std::size_t>(size));
    for (float& value : drawn) {
      value = 1e-3f * static_cast<float>(between(random, -1000000, 1000000));
    }
    return drawn;
  };
  const std::vector<float> scales = draw(stride == 0 ? 1 : count), biases = draw(stride == 0 ? 1 : count);
  std::vector<float> want = draw(count), got = want;
  subbyte::reference_rescale.rescale(want.data(), count, scales.data(), biases.data(), stride);
  kernels.rescale->rescale(got.data(), count, scales.data(), biases.data(), stride);
  return got == want;
}

}  // namespace conformance
