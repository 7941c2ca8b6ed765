// Linear layers on floats against the reference.
#include <cstring>

#include "agreement.h"

namespace conformance {

bool float_linear_agrees(const subbyte::Kernels& kernels, Random& random) {
  subbyte::FloatLinear call{};
  call.rows = between(random, 1, random() % 30 == 0 ? 110 : 15);
  call.outputs = between(random, 1, 90);
  call.groups = between(random, 1, 3);
  call.bits = static_cast<int>(between(random, 1, 8));
  std::vector<subbyte::Segment> segments;
  std::int64_t blocks = 0;
  for (std::int64_t group = 0; group < call.groups; ++group) {
    const std::int64_t steps = between(random, 1, random() % 20 == 0 ? 150 : 20);
    segments.push_back({steps, call.x_stride, group, true, true});
    call.x_stride += 4 * steps;
    blocks += subbyte::blocks_of(steps);
  }
  call.panel_bytes = blocks * subbyte::block_bytes(call.bits);
  const std::int64_t panels = (call.outputs + 15) / 16, parameters = panels * call.groups * 16;
  const auto floats = [&](std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random);
    }
    return values;
  };
  const auto x = floats(call.rows * call.x_stride), scales = floats(parameters), zeros = floats(parameters);
  const auto bias = floats(panels * 16);
  auto values = floats(16);
  for (std::size_t i = std::size_t{1} << (call.bits < 4 ? call.bits : 4); i < 16; ++i) {
    values[i] = values[i - (std::size_t{1} << call.bits)];
  }
  const Bytes packed = random_bytes(random, panels * call.panel_bytes);
  call.segments = segments.data(), call.x = x.data(), call.panels = packed.data(), call.w_scales = scales.data();
  call.values = values.data(), call.w_zeros = random() % 2 == 0 ? zeros.data() : nullptr;
  call.bias = random() % 2 == 0 ? bias.data() : nullptr;
  std::vector<float> want(static_cast<std::size_t>(call.rows * call.outputs)), got(want.size());
  call.y = want.data();
  subbyte::reference_float_linear.linear(call, 0, call.rows, 0, panels);
  call.y = got.data();
  const std::int64_t row = between(random, 0, call.rows), panel = between(random, 0, panels);
  kernels.float_linear->linear(call, 0, row, 0, panels);  // in pieces, as threads take it
  kernels.float_linear->linear(call, row, call.rows, 0, panel);
  kernels.float_linear->linear(call, row, call.rows, panel, panels);
  return std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
}

}  // namespace conformance
