// Depthwise convolutions against the reference.
#include "agreement.h"

namespace conformance {

bool depthwise_agrees(const subbyte::Kernels& kernels, Random& random) {
  subbyte::Depthwise call{};
  call.channels = between(random, 1, 150), call.taps = between(random, 1, 12);
  call.x_zero = static_cast<std::int32_t>(between(random, -128, 127));
  std::vector<std::int64_t> offsets;
  for (std::int64_t tap = 0; tap < call.taps; ++tap) {
    offsets.push_back(between(random, 0, 3 * call.channels));
  }
  const Bytes x = random_bytes(random, 4 * call.channels);
  std::vector<std::int16_t> weights(static_cast<std::size_t>(call.taps * call.channels));
  for (std::int16_t& weight : weights) {
    weight = static_cast<std::int16_t>(between(random, -255, 255));
  }
  std::vector<float> scales(static_cast<std::size_t>(call.channels)), bias(scales.size()), want(scales.size()), got(scales);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = 0.01f * static_cast<float>(between(random, 1, 99)), bias[i] = static_cast<float>(between(random, -9, 9));
  }
  call.tap_offsets = offsets.data(), call.weights = weights.data(), call.scales = scales.data();
  call.bias = random() % 2 == 0 ? bias.data() : nullptr;
  const auto* at = reinterpret_cast<const std::int8_t*>(x.data());
  subbyte::reference_depthwise.window(call, at, want.data());
  kernels.depthwise->window(call, at, got.data());
  return got == want;
}

}  // namespace conformance
