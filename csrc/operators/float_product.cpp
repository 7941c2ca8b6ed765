#include "float_product.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <string>

namespace subbyte {
namespace {

constexpr float kLargestWhole = 256.0f;  // to which every whole number is exact in bf16

bool is_exact(float value) {
  std::uint32_t all = 0;
  std::memcpy(&all, &value, sizeof all);
  return value == 0.0f || ((all & 0xffff) == 0 && std::fabs(value) >= FLT_MIN && std::isfinite(value));
}

// Whether all are whole numbers of [low, high]. Without a branch, as there may be very many.
bool are_whole(const Tensor& tensor, float low, float high) {
  constexpr float shift = 3 << 22;  // beyond which floats are whole
  const auto* values = tensor.data<float>();
  const std::int64_t count = tensor.count();
  std::int32_t all = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[i];
    all &= static_cast<std::int32_t>(value >= low) & static_cast<std::int32_t>(value <= high) &
           static_cast<std::int32_t>((value + shift) - shift == value);
  }
  return all != 0;
}

}  // namespace

FloatArguments::FloatArguments(Tensor* first, std::int64_t bits)
    : weight_(checked(std::move(first[0]), "the packed weight", torch_api().dtype_uint8())),
      scale_(checked(std::move(first[1]), "the weight's scale", torch_api().dtype_float32())),
      zero_point_(checked(std::move(first[2]), "the weight's zero point", torch_api().dtype_float32())),
      values_(checked(std::move(first[3]), "the table of values", torch_api().dtype_float32())),
      bias_(checked(std::move(first[4]), "the bias", torch_api().dtype_float32())),
      bits_(static_cast<int>(bits)) {
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require_count(values_, "the table of values", bits <= 4 ? 16 : 0);
}

void FloatArguments::check(std::int64_t panels, std::int64_t groups, std::int64_t panel_bytes) const {
  const std::int64_t parameters = product_of({panels, groups, kPanel}, "the weight");
  require_count(weight_, "the packed weight", product_of({panels, panel_bytes}, "the weight"));
  require_count(scale_, "the weight's scale", parameters);
  require_count(zero_point_, "the weight's zero point", zero_point_.count() == 0 ? 0 : parameters);
  require_count(bias_, "the bias", bias_.count() == 0 ? 0 : panels * kPanel);
}

bool FloatArguments::is_exact_in_bf16() const {
  const auto* values = values_.data<float>();
  if (zero_point_.count() == 0) {
    return std::all_of(values, values + values_.count(), is_exact);
  }
  float lowest = 0.0f, highest = static_cast<float>((1 << bits_) - 1);
  if (values_.count() != 0) {
    lowest = *std::min_element(values, values + values_.count());
    highest = *std::max_element(values, values + values_.count());
  }
  const bool whole = are_whole(values_, -kLargestWhole, kLargestWhole);
  return whole && are_whole(zero_point_, highest - kLargestWhole, lowest + kLargestWhole);
}

Tensor checked_float_layout(Tensor&& x) {
  const bool is_bf16 = x.dtype() == torch_api().dtype_bfloat16();
  return checked_layout(std::move(x), "x", is_bf16 ? torch_api().dtype_bfloat16() : torch_api().dtype_float32());
}

}  // namespace subbyte
