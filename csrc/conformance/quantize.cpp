// Quantizing against the reference.
#include <cmath>

#include "agreement.h"

namespace conformance {

bool quantizing_agrees(const subbyte::Kernels& kernels, Random& random) {
  const bool is_signed = random() % 2 == 0;
  const int bits = static_cast<int>(between(random, 1, 8));
  const std::int32_t low = is_signed ? -(1 << (bits - 1)) : 0, high = low + (1 << bits) - 1;
  const subbyte::Affine affine = {0.25f * static_cast<float>(between(random, 1, 9)),
                                  static_cast<std::int32_t>(between(random, low, high)), low, high, is_signed ? 0 : 128};
  std::vector<float> x(static_cast<std::size_t>(between(random, 0, 100)));
  for (float& value : x) {  // halves of the scale among them: ties
    value = 0.125f * static_cast<float>(between(random, -4000, 4000));
  }
  if (!x.empty() && random() % 3 == 0) {
    const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f};
    x[random() % x.size()] = special[random() % 5];
  }
  std::vector<std::int8_t> want(x.size()), got(x.size());
  const auto count = static_cast<std::int64_t>(x.size());
  const bool want_nan = subbyte::reference_quantize.quantize(x.data(), count, affine, want.data());
  return kernels.quantize->quantize(x.data(), count, affine, got.data()) == want_nan && got == want;
}

}  // namespace conformance
