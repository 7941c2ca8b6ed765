// Linear layers on floats against the reference.
#include "float_product.h"

namespace conformance {

bool float_linear_agrees(const subbyte::Kernels& kernels, Random& random) {
  const FloatCase drawn(random, false, [](float value) { return value; });
  Floats want(static_cast<std::size_t>(drawn.rows * drawn.call.outputs)), got(want.size());
  subbyte::FloatLinear call = drawn.call;
  call.y = want.data();
  subbyte::reference_float_linear.linear(call, 0, drawn.rows, 0, drawn.panels);
  call.y = got.data();
  drawn.run_in_pieces(random, *kernels.float_linear, call);
  return std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
}

}  // namespace conformance
