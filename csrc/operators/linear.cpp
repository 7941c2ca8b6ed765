// linear_codes: rows of floats quantized, multiplied with packed codes, rescaled.
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../isa.h"
#include "operators.h"
#include "parallel.h"
#include "require.h"
#include "../torch/tensor.h"

namespace subbyte {
namespace {

constexpr std::int64_t kPanel = 16;
// Multiplications that one thread takes at least.
constexpr std::int64_t kGrain = 1 << 16;

Tensor checked(StackValue value, const char* name, std::int32_t dtype, std::int64_t count) {
  Tensor tensor = Tensor::from_stack(value);
  require(tensor.on_cpu(), std::string("linear_codes: ") + name + " must be on the CPU");
  require(tensor.dtype() == dtype, std::string("linear_codes: ") + name + " has the wrong dtype");
  require(tensor.count() == count, std::string("linear_codes: ") + name + " has " + std::to_string(tensor.count()) +
                                       " elements; it takes " + std::to_string(count));
  return std::move(tensor).contiguous();
}

// The rows as shifted codes, each group filled up to whole steps, and the sum of each group.
struct Rows {
  std::vector<std::int8_t> codes;
  std::vector<std::int32_t> sums;
  std::vector<float> scales;
  std::vector<std::int32_t> zeros;
};

void quantize_row(const Linear& call, const float* x, const Affine& affine, std::int64_t m, Rows& rows) {
  const Kernels& kernels = chosen_isa().kernels;
  std::int8_t* codes = rows.codes.data() + m * call.steps * 4;
  bool any_nan = false;
  for (std::int64_t group = 0; group < call.groups; ++group) {
    const std::int64_t size = call.group_sizes[group];
    any_nan = kernels.quantize->quantize(x, size, affine, codes) || any_nan;
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      sum += codes[i];
    }
    rows.sums[static_cast<std::size_t>(m * call.groups + group)] = sum;
    x += size;
    codes += call.group_steps[group] * 4;
  }
  // A NaN has no code: it makes the whole row NaN, as it would in float.
  rows.scales[static_cast<std::size_t>(m)] = any_nan ? std::numeric_limits<float>::quiet_NaN() : affine.scale;
  rows.zeros[static_cast<std::size_t>(m)] = affine.zero_point - affine.shift;
}

void linear_codes(StackValue* stack, std::uint64_t, std::uint64_t) {
  const TorchApi& api = torch_api();
  const auto low = static_cast<std::int64_t>(stack[8]), high = static_cast<std::int64_t>(stack[9]);
  const auto bits = static_cast<std::int64_t>(stack[10]), outputs = static_cast<std::int64_t>(stack[11]);
  const auto group_size = static_cast<std::int64_t>(stack[12]);
  Tensor given = Tensor::from_stack(stack[0]);
  const std::vector<std::int64_t> sizes = given.sizes();
  // All arguments are taken over before the first is refused: what is not taken over is not freed.
  std::vector<Tensor> rest;
  for (int i = 1; i < 8; ++i) {
    rest.push_back(Tensor::from_stack(stack[i]));
  }
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require(sizes.size() == 2, "linear_codes: x has rows and columns");
  require(given.on_cpu() && given.dtype() == api.dtype_float32(), "linear_codes: x must be float32 on the CPU");
  const std::int64_t inputs = sizes[1];
  require(inputs > 0 && outputs > 0, "linear_codes: a layer has inputs and outputs");
  require(group_size > 0, "linear_codes: a group holds something");
  require(low < high && low >= -128 && high <= 255 && high - low <= 255, "linear_codes: codes of x take 8 bits");
  Linear call{};
  call.rows = sizes[0], call.outputs = outputs, call.bits = static_cast<int>(bits);
  call.groups = divided_up(inputs, group_size);
  std::vector<std::int64_t> group_sizes, group_steps;
  for (std::int64_t first = 0; first < inputs; first += group_size) {
    group_sizes.push_back(inputs - first < group_size ? inputs - first : group_size);
    group_steps.push_back(divided_up(group_sizes.back(), 4));
    call.steps += group_steps.back();
  }
  call.group_sizes = group_sizes.data(), call.group_steps = group_steps.data();
  const std::int64_t panels = divided_up(outputs, kPanel), parameters = panels * call.groups * kPanel;
  const auto take = [&](int i, const char* name, std::int32_t dtype, std::int64_t count) {
    return checked(std::move(rest[static_cast<std::size_t>(i - 1)]).to_stack(), name, dtype, count);
  };
  const Tensor x = std::move(given).contiguous();
  const Tensor weight = take(1, "the packed weight", api.dtype_uint8(), panels * call.steps * 8 * bits);
  const Tensor w_scales = take(2, "the weight's scale", api.dtype_float32(), parameters);
  const Tensor w_zeros = take(3, "the weight's zero point", api.dtype_int32(), parameters);
  const Tensor w_sums = take(4, "the weight's sums", api.dtype_int32(), parameters);
  const bool has_bias = rest[4].count() != 0;
  const Tensor bias = take(5, "the bias", api.dtype_float32(), has_bias ? panels * kPanel : 0);
  const bool by_row = rest[5].count() != 1;
  const std::int64_t x_parameters = by_row ? call.rows : 1;
  const Tensor x_scale = take(6, "the scale of x", api.dtype_float32(), x_parameters);
  const Tensor x_zero = take(7, "the zero point of x", api.dtype_int32(), x_parameters);
  Tensor y = Tensor::empty({call.rows, outputs}, api.dtype_float32());

  const auto* scale = x_scale.data<float>();
  const auto* zero = x_zero.data<std::int32_t>();
  for (std::int64_t i = 0; i < x_parameters; ++i) {
    require(std::isfinite(scale[i]) && scale[i] > 0, "linear_codes: the scale of x is no positive number");
    require(zero[i] >= low && zero[i] <= high, "linear_codes: the zero point of x is no code");
  }
  const auto affine_of = [&](std::int64_t m) {
    return Affine{scale[by_row ? m : 0], zero[by_row ? m : 0], static_cast<std::int32_t>(low),
                  static_cast<std::int32_t>(high), high > 127 ? 128 : 0};
  };
  Rows rows;
  rows.codes.resize(static_cast<std::size_t>(call.rows * call.steps * 4));
  rows.sums.resize(static_cast<std::size_t>(call.rows * call.groups));
  rows.scales.resize(static_cast<std::size_t>(call.rows));
  rows.zeros.resize(static_cast<std::size_t>(call.rows));
  const auto* values = x.data<float>();
  in_parallel(call.rows, divided_up(kGrain, 8 * inputs), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      quantize_row(call, values + m * inputs, affine_of(m), m, rows);
    }
  });
  call.x = rows.codes.data(), call.x_sums = rows.sums.data(), call.x_scales = rows.scales.data();
  call.x_zeros = rows.zeros.data(), call.panels = weight.data<std::uint8_t>();
  call.w_scales = w_scales.data<float>(), call.w_zeros = w_zeros.data<std::int32_t>();
  call.w_sums = w_sums.data<std::int32_t>(), call.bias = has_bias ? bias.data<float>() : nullptr;
  call.y = y.data<float>();
  const Kernels& kernels = chosen_isa().kernels;
  const std::int64_t work = call.rows * call.steps * 4 * kPanel;
  in_parallel(panels, work == 0 ? panels : divided_up(kGrain, work), [&](std::int64_t begin, std::int64_t end) {
    kernels.linear->linear(call, 0, call.rows, begin, end);
  });
  stack[0] = std::move(y).to_stack();
}

}  // namespace

std::vector<Operator> linear_operators() {
  return {{"linear_codes",
           "linear_codes(Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, "
           "Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, int outputs, "
           "int group_size) -> Tensor",
           linear_codes}};
}

}  // namespace subbyte
