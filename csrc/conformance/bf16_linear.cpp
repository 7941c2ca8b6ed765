// Linear layers on bf16 against the reference of fp32, within the bound of kernels/bf16_linear.h.
#include "float_product.h"

namespace conformance {
namespace {

float of_bits(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint16_t upper_half(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

// Within the bound, and y's own rounding.
bool is_near(float want, std::uint16_t got, double bound) {
  const double y = of_bits(static_cast<std::uint32_t>(got) << 16);
  return std::fabs(y - want) <= bound * (1 + 1.0 / 256) + std::fabs(want) / 256;
}

}  // namespace

bool bf16_linear_agrees(const subbyte::Kernels& kernels, Random& random) {
  if (kernels.bf16_linear == nullptr) {
    return true;
  }
  const FloatCase drawn(random, true, [](float value) { return of_bits(std::uint32_t{upper_half(value)} << 16); });
  std::vector<std::uint16_t> x, got(static_cast<std::size_t>(drawn.rows * drawn.call.outputs));
  for (const float value : drawn.x) {
    x.push_back(upper_half(value));
  }
  Floats want(got.size());
  subbyte::FloatLinear exact = drawn.call;
  exact.y = want.data();
  subbyte::reference_float_linear.linear(exact, 0, drawn.rows, 0, drawn.panels);
  const subbyte::FloatLinear& from = drawn.call;
  const subbyte::Bf16Linear call = {from.outputs, from.groups,      from.segment_count, from.bits,     from.values,
                                    from.segments, x.data(),        from.row_offsets,   from.panels,   from.panel_bytes,
                                    from.w_scales, from.w_zeros,    from.bias,          got.data(),    from.y_stride,
                                    from.y_origin};
  drawn.run_in_pieces(random, *kernels.bf16_linear, call);
  // |x|, |scale| and |bias| are at most 2, |w| at most 255 + 120; both sums are rounded.
  const double inputs = static_cast<double>(drawn.x.size()) / static_cast<double>(drawn.rows);
  const double bound = 2 * (inputs + 5) * std::ldexp(1.0, -24) * (inputs * 2 * 2 * 375 + 2);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!is_near(want[i], got[i], bound)) {
      return false;
    }
  }
  return true;
}

}  // namespace conformance
