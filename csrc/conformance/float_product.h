// A product of floats with a packed weight, drawn at random.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "agreement.h"

namespace conformance {

using Floats = std::vector<float>;

// In buffers of the exact size. `call.y` is to be set.
class FloatCase {
 public:
  // `round` is applied to x; and to what it meets, which is whole where weights have zero points and `round` does anything.
  template <typename Round>
  FloatCase(Random& random, bool whole, const Round& round) {
    rows = between(random, 1, random() % 30 == 0 ? 210 : 15);
    call.outputs = between(random, 1, 90), call.groups = between(random, 1, 3);
    call.bits = static_cast<int>(between(random, 1, 8));
    panels = (call.outputs + 15) / 16;
    const std::int64_t row_size = draw_segments(random), parameters = panels * call.groups * 16;
    x = drawn(random, rows * row_size), scales = drawn(random, parameters), bias = drawn(random, panels * 16);
    values = drawn(random, 16), zeros = drawn(random, parameters);
    for (float& value : x) {
      value = round(value);
    }
    const bool has_zeros = random() % 2 == 0;
    for (std::size_t i = 0; i < 16; ++i) {
      const std::size_t codes = std::size_t{1} << (call.bits < 4 ? call.bits : 4);
      values[i] = i >= codes ? values[i - codes] : whole && has_zeros ? std::floor(20 * values[i]) : round(values[i]);
    }
    for (float& zero : zeros) {
      zero = whole ? std::floor(60 * std::fabs(zero)) : zero;
    }
    packed = random_bytes(random, panels * call.panel_bytes);
    for (std::int64_t m = 0; m < rows; ++m) {
      offsets.push_back((rows - 1 - m) * row_size);
    }
    call.segments = segments.data(), call.segment_count = static_cast<std::int64_t>(segments.size());
    call.x = x.data(), call.row_offsets = offsets.data(), call.panels = packed.data(), call.w_scales = scales.data();
    call.values = call.bits <= 4 ? values.data() : nullptr, call.w_zeros = has_zeros ? zeros.data() : nullptr;
    call.bias = random() % 2 == 0 ? bias.data() : nullptr, call.y_stride = call.outputs;
  }

  template <typename Kernels, typename Number>
  void run_in_pieces(Random& random, const Kernels& kernels, const subbyte::FloatProduct<Number>& product) const {
    const std::int64_t row = between(random, 0, rows), panel = between(random, 0, panels);
    kernels.linear(product, 0, row, 0, panels);  // as threads take it
    kernels.linear(product, row, rows, 0, panel);
    kernels.linear(product, row, rows, panel, panels);
  }

  subbyte::FloatLinear call{};
  std::int64_t rows, panels;
  Floats x, scales, bias, values, zeros;
  std::vector<std::int64_t> offsets;
  std::vector<subbyte::Segment> segments;

 private:
  static Floats drawn(Random& random, std::int64_t count) {
    Floats values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random);
    }
    return values;
  }

  // How long a row is.
  std::int64_t draw_segments(Random& random) {
    std::int64_t offset = 0, blocks = 0;
    for (std::int64_t group = 0; group < call.groups; ++group) {
      const std::int64_t count = between(random, 1, 3);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t steps = between(random, 1, random() % 20 == 0 ? 150 : 20);
        segments.push_back({steps, offset, group, i == 0, i + 1 == count});
        offset += 4 * steps;
        blocks += subbyte::blocks_of(steps);
      }
    }
    call.panel_bytes = blocks * subbyte::block_bytes(call.bits);
    return offset;
  }

  Bytes packed;
};

}  // namespace conformance
