// Quantizing in plain C++.
#include "../kernels/quantize.h"

namespace subbyte {
namespace {

bool quantize(const float* x, int64_t count, const Affine& affine, int8_t* codes) {
  bool any_nan = false;
  for (int64_t i = 0; i < count; ++i) {
    float code = __builtin_nearbyintf(x[i] / affine.scale) + static_cast<float>(affine.zero_point);
    any_nan = any_nan || code != code;
    code = code >= static_cast<float>(affine.low) ? code : static_cast<float>(affine.low);
    code = code <= static_cast<float>(affine.high) ? code : static_cast<float>(affine.high);
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code) - affine.shift);
  }
  return any_nan;
}

}  // namespace

const QuantizeKernels reference_quantize = {quantize};

}  // namespace subbyte
