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

// Multiplications that one thread takes at least.
constexpr std::int64_t kGrain = 1 << 19;
// The pieces of a call. With few rows the weight is a stream, else four panels at once are worth unpacking.
constexpr std::int64_t kFewRows = 4, kRowsOfPiece = 96, kPanelsOfPiece = 4;

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
  std::int8_t* codes = rows.codes.data() + m * call.x_stride;
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
    codes += call.group_steps[group] * kStep;
  }
  // A NaN has no code: it makes the whole row NaN, as it would in float.
  rows.scales[static_cast<std::size_t>(m)] = any_nan ? std::numeric_limits<float>::quiet_NaN() : affine.scale;
  rows.zeros[static_cast<std::size_t>(m)] = affine.zero_point - affine.shift;
}

// Sizes of groups and where they lie.
struct Groups {
  std::vector<std::int64_t> sizes, steps;
  std::int64_t all_steps = 0, blocks = 0;

  Groups(std::int64_t inputs, std::int64_t group_size) {
    for (std::int64_t first = 0; first < inputs; first += group_size) {
      sizes.push_back(inputs - first < group_size ? inputs - first : group_size);
      steps.push_back(divided_up(sizes.back(), kStep));
      all_steps += steps.back();
      blocks += blocks_of(steps.back());
    }
  }
};

// Rows that lie a multiple of 1 KiB apart would share few places of a cache.
std::int64_t row_stride(std::int64_t bytes) {
  const std::int64_t lines = divided_up(bytes, 64);
  return 64 * (lines % 16 == 0 ? lines + 1 : lines);
}

void multiply(const Linear& call) {
  const LinearKernels& kernels = *chosen_isa().kernels.linear;
  const std::int64_t panels = divided_up(call.outputs, kPanel);
  const std::int64_t at_once = call.rows <= kFewRows ? 1 : kPanelsOfPiece;
  const std::int64_t row_pieces = divided_up(call.rows, kRowsOfPiece), panel_pieces = divided_up(panels, at_once);
  const std::int64_t rows = row_pieces == 0 ? 0 : divided_up(call.rows, row_pieces);
  const std::int64_t work = 1 + rows * call.x_stride * kPanel * at_once;
  in_parallel(row_pieces * panel_pieces, divided_up(kGrain, work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t row = piece % row_pieces * rows, panel = piece / row_pieces * at_once;
      kernels.linear(call, row, row + rows < call.rows ? row + rows : call.rows, panel,
                     panel + at_once < panels ? panel + at_once : panels);
    }
  });
}

void linear_codes(StackValue* stack, std::uint64_t, std::uint64_t) {
  const TorchApi& api = torch_api();
  const auto low = static_cast<std::int64_t>(stack[9]), high = static_cast<std::int64_t>(stack[10]);
  const auto bits = static_cast<std::int64_t>(stack[11]), outputs = static_cast<std::int64_t>(stack[12]);
  const auto group_size = static_cast<std::int64_t>(stack[13]);
  Tensor given = Tensor::from_stack(stack[0]);
  const std::vector<std::int64_t> sizes = given.sizes();
  // All arguments are taken over before the first is refused: what is not taken over is not freed.
  std::vector<Tensor> rest;
  for (int i = 1; i < 9; ++i) {
    rest.push_back(Tensor::from_stack(stack[i]));
  }
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require(sizes.size() == 2, "linear_codes: x has rows and columns");
  require(given.on_cpu() && given.dtype() == api.dtype_float32(), "linear_codes: x must be float32 on the CPU");
  const std::int64_t inputs = sizes[1];
  require(inputs > 0 && outputs > 0, "linear_codes: a layer has inputs and outputs");
  require(group_size > 0, "linear_codes: a group holds something");
  require(low < high && low >= -128 && high <= 255 && high - low <= 255, "linear_codes: codes of x take 8 bits");
  const Groups groups(inputs, group_size);
  Linear call{};
  call.rows = sizes[0], call.outputs = outputs, call.bits = static_cast<int>(bits);
  call.groups = static_cast<std::int64_t>(groups.sizes.size());
  call.group_sizes = groups.sizes.data(), call.group_steps = groups.steps.data();
  call.panel_bytes = groups.blocks * block_bytes(call.bits), call.x_stride = row_stride(groups.all_steps * kStep);
  const std::int64_t panels = divided_up(outputs, kPanel), parameters = panels * call.groups * kPanel;
  const auto take = [&](int i, const char* name, std::int32_t dtype, std::int64_t count) {
    return checked(std::move(rest[static_cast<std::size_t>(i - 1)]).to_stack(), name, dtype, count);
  };
  const Tensor x = std::move(given).contiguous();
  const Tensor weight = take(1, "the packed weight", api.dtype_uint8(), panels * call.panel_bytes);
  const Tensor w_scales = take(2, "the weight's scale", api.dtype_float32(), parameters);
  const bool one_zero = rest[2].count() == 1;
  const Tensor w_zeros = take(3, "the weight's zero point", api.dtype_int32(), one_zero ? 1 : parameters);
  const Tensor w_sums = take(4, "the weight's sums", api.dtype_int32(), parameters);
  const bool has_values = rest[4].count() != 0;
  const Tensor values = take(5, "the table of values", api.dtype_uint8(), has_values ? 16 : 0);
  require(!has_values || bits <= 4, "linear_codes: a table of values is for codes of at most 4 bits");
  const bool has_bias = rest[5].count() != 0;
  const Tensor bias = take(6, "the bias", api.dtype_float32(), has_bias ? panels * kPanel : 0);
  const bool by_row = rest[6].count() != 1;
  const std::int64_t x_parameters = by_row ? call.rows : 1;
  const Tensor x_scale = take(7, "the scale of x", api.dtype_float32(), x_parameters);
  const Tensor x_zero = take(8, "the zero point of x", api.dtype_int32(), x_parameters);
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
  rows.codes.resize(static_cast<std::size_t>(call.rows * call.x_stride));
  rows.sums.resize(static_cast<std::size_t>(call.rows * call.groups));
  rows.scales.resize(static_cast<std::size_t>(call.rows));
  rows.zeros.resize(static_cast<std::size_t>(call.rows));
  const auto* floats = x.data<float>();
  in_parallel(call.rows, divided_up(kGrain, 64 * inputs), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      quantize_row(call, floats + m * inputs, affine_of(m), m, rows);
    }
  });
  call.x = rows.codes.data(), call.x_sums = rows.sums.data(), call.x_scales = rows.scales.data();
  call.x_zeros = rows.zeros.data(), call.panels = weight.data<std::uint8_t>();
  call.w_scales = w_scales.data<float>(), call.w_sums = w_sums.data<std::int32_t>();
  call.w_zero = one_zero ? *w_zeros.data<std::int32_t>() : 0;
  call.w_zeros = one_zero ? nullptr : w_zeros.data<std::int32_t>();
  call.values = has_values ? values.data<std::uint8_t>() : nullptr;
  call.bias = has_bias ? bias.data<float>() : nullptr;
  call.y = y.data<float>();
  multiply(call);
  stack[0] = std::move(y).to_stack();
}

}  // namespace

std::vector<Operator> linear_operators() {
  return {{"linear_codes",
           "linear_codes(Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, "
           "Tensor values, Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, "
           "int outputs, int group_size) -> Tensor",
           linear_codes}};
}

}  // namespace subbyte
