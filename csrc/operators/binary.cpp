#include "binary.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "product.h"
#include "require.h"
#include "tensor_argument.h"

namespace subbyte {
namespace {

// The floats in their order, numbered; -0 and +0 are one.
float float_of(std::int64_t number) {
  const auto bits = static_cast<std::uint32_t>(number < 0 ? 0x80000000ll - number : number);
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr std::int64_t kInfinity = 0x7f800000;

// Words are put together only where something does not fit: a small layer is called in less time.
void check_tensor(Tensor& tensor, const char* what, std::int32_t dtype, std::int64_t count) {
  if (!tensor.on_cpu() || tensor.dtype() != dtype) {
    require_tensor(tensor, what, {dtype});
  }
  if (tensor.count() != count) {
    require_count(tensor, what, count);
  }
  tensor = std::move(tensor).contiguous();
}

}  // namespace

float Levels::threshold(std::int64_t plane, float scale, std::int32_t zero_point) const {
  const auto next = static_cast<float>(low + (plane + 1) * step() - zero_point);
  const float middle = next - 0.5f * static_cast<float>(step());
  const auto reached = [&](float x) {
    const float quotient = x / scale;
    return rounds ? std::nearbyint(quotient) >= next : quotient >= middle;
  };
  std::int64_t below = -kInfinity, above = kInfinity;  // quotients rise with x
  while (above - below > 1) {
    const std::int64_t number = below + (above - below) / 2;
    (reached(float_of(number)) ? above : below) = number;
  }
  return float_of(above);
}

BinaryArguments BinaryArguments::from_stack(const StackValue* stack) {
  const auto integer = [stack](int i) { return static_cast<std::int64_t>(stack[i]); };
  const auto tensor = [stack](int i) { return Tensor::from_stack(stack[i]); };
  return {tensor(1), tensor(2), tensor(3), tensor(4), tensor(5), tensor(6), tensor(7),
          {integer(8), integer(9), integer(10), (stack[11] & 1) != 0}, integer(12), (stack[13] & 1) != 0};
}

void BinaryArguments::check(std::int64_t padded, std::int64_t words, std::int64_t taps,
                            std::int64_t x_parameters) {
  const TorchApi& api = torch_api();
  const auto hold = [](bool holds, const char* what) {
    if (!holds) {
      require(false, what);
    }
  };
  hold(levels.count == 2 || levels.count == 3, "x has two or three levels");
  hold(levels.low < levels.high && levels.low >= -128 && levels.high <= 128 &&
           (levels.high - levels.low) % (levels.count - 1) == 0,
       "the levels of x are evenly spaced whole numbers within -128..128");
  hold(!levels.rounds || levels.step() == 1, "levels that are rounded to are neighbours");
  const std::int64_t scales = x_scale.count();
  check_tensor(weight, "the packed weight", api.dtype_int64(), product_of({padded, words, has_masks ? 2 : 1}, "the weight"));
  check_tensor(weight_scale, "the weight's scale", api.dtype_float32(), padded);
  check_tensor(weight_sums, "the weight's sums", api.dtype_int32(), product_of({padded, taps}, "the weight"));
  check_tensor(weight_ones, "the weight's ones", api.dtype_int32(), padded);
  check_tensor(bias, "the bias", api.dtype_float32(), bias.count() == 0 ? 0 : padded);
  check_tensor(x_scale, "the scale of x", api.dtype_float32(), scales == 1 ? 1 : x_parameters);
  check_tensor(x_zero_point, "the zero point of x", api.dtype_int32(), scales);
  const float* scale = x_scale.data<float>();
  const std::int32_t* zero_point = x_zero_point.data<std::int32_t>();
  for (std::int64_t i = 0; i < scales; ++i) {
    hold(std::isfinite(scale[i]) && scale[i] > 0, "the scale of x is no positive number");
    hold(levels.rounds ? zero_point[i] >= levels.low && zero_point[i] <= levels.high : zero_point[i] == 0,
         "the zero point of x is no code");
  }
}

void BinaryArguments::write_base(const std::int32_t* sums, const std::int32_t* ones, std::int32_t zero_point,
                                 std::int64_t count, std::int32_t* base) const {
  const auto low = static_cast<std::uint32_t>(levels.low - zero_point);
  const auto each = static_cast<std::uint32_t>(levels.step() * levels.planes());
  for (std::int64_t n = 0; n < count; ++n) {
    base[n] = static_cast<std::int32_t>(low * static_cast<std::uint32_t>(sums[n]) +
                                        each * static_cast<std::uint32_t>(ones[n]));
  }
}

bool has_nan(const float* x, std::int64_t count) {
  bool found = false;
  for (std::int64_t i = 0; i < count; ++i) {
    found |= x[i] != x[i];
  }
  return found;
}

}  // namespace subbyte
