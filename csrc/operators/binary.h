// What binary_linear and binary_conv2d have in common: arguments checked, and levels found by thresholds.
#pragma once

#include <cstdint>
#include <vector>

#include "../kernels/binary.h"
#include "../torch/tensor.h"

namespace subbyte {

constexpr std::int64_t kBinaryPanel = 8;

// The grid values that x is quantized to: `count` of them, evenly spaced from `low` to `high`. `rounds`: as an affine
// type does, half to even, zero point subtracted; else as a table does, the nearest, half to the upper.
struct Levels {
  std::int64_t low, high, count;
  bool rounds;

  std::int64_t step() const { return (high - low) / (count - 1); }
  std::int64_t planes() const { return count - 1; }

  // The least float that is quantized to a level past `plane`, by division and all: comparing replaces dividing.
  float threshold(std::int64_t plane, float scale, std::int32_t zero_point) const;
};

// The arguments from the second on that both operators begin with.
struct BinaryArguments {
  Tensor weight, weight_scale, weight_sums, weight_ones, bias, x_scale, x_zero_point;
  Levels levels;
  std::int64_t outputs;
  bool has_masks;

  static constexpr int kCount = 14;  // with x, on the stack
  static BinaryArguments from_stack(const StackValue* stack);

  // Throws std::runtime_error where something does not fit.
  // padded: outputs filled up to whole panels; words: of a row; taps: positions that weights are summed by.
  void check(std::int64_t padded, std::int64_t words, std::int64_t taps, std::int64_t x_parameters);

  // base[n] of BinaryProducts where these are the sums of the weights.
  void write_base(const std::int32_t* sums, const std::int32_t* ones, std::int32_t zero_point, std::int64_t count,
                  std::int32_t* base) const;
};

bool has_nan(const float* x, std::int64_t count);

}  // namespace subbyte
