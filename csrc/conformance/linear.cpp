// Linear layers against the reference.
#include <cstring>

#include "agreement.h"

namespace conformance {
namespace {

// Bytes drawn evenly, or all at one end: the largest sums there are.
std::uint8_t extreme_or_any(Random& random, int kind, int high) {
  return static_cast<std::uint8_t>(kind == 0 ? 0 : kind == 1 ? high : static_cast<int>(random() % (high + 1u)));
}

}  // namespace

bool linear_agrees(const subbyte::Kernels& kernels, Random& random) {
  subbyte::Linear call{};
  call.rows = between(random, 1, random() % 20 == 0 ? 120 : 30);
  call.outputs = between(random, 1, 100);
  call.groups = between(random, 1, 3);
  call.bits = static_cast<int>(between(random, 1, 8));
  std::vector<subbyte::Segment> segments;
  std::vector<std::int64_t> sizes;
  std::int64_t blocks = 0, x_stride = 0;
  for (std::int64_t group = 0; group < call.groups; ++group) {
    sizes.push_back(0);
    const std::int64_t parts = between(random, 1, 3);
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t size = between(random, 1, random() % 20 == 0 ? 3000 : 60), steps = (size + 3) / 4;
      segments.push_back({steps, x_stride, group, part == 0, part + 1 == parts});
      sizes.back() += size;
      x_stride += 4 * steps + between(random, 0, 5);
      blocks += subbyte::blocks_of(steps);
    }
  }
  call.panel_bytes = blocks * subbyte::block_bytes(call.bits);
  call.segment_count = static_cast<std::int64_t>(segments.size());
  const std::int64_t panels = (call.outputs + 15) / 16;
  std::vector<std::int64_t> row_offsets;
  for (std::int64_t m = 0; m < call.rows; ++m) {
    row_offsets.push_back(between(random, 0, call.rows - 1) * x_stride);
  }
  std::vector<std::int8_t> x(static_cast<std::size_t>(call.rows * x_stride));
  const int x_kind = static_cast<int>(random() % 3), w_kind = static_cast<int>(random() % 3);
  for (std::int8_t& value : x) {
    value = static_cast<std::int8_t>(extreme_or_any(random, x_kind, 255) - 128);
  }
  if (kernels.linear->sum(x.data(), x_stride) != subbyte::reference_linear.sum(x.data(), x_stride)) {
    return false;
  }
  const std::int64_t bytes = std::int64_t{4} << between(random, 0, 5), places = x_stride / bytes;
  std::vector<std::int32_t> want_sums(static_cast<std::size_t>(places)), got_sums(want_sums.size());
  subbyte::reference_linear.sums(x.data(), places, bytes, want_sums.data());
  kernels.linear->sums(x.data(), places, bytes, got_sums.data());
  if (want_sums != got_sums) {
    return false;
  }
  Bytes packed(static_cast<std::size_t>(panels * call.panel_bytes));
  for (std::uint8_t& byte : packed) {
    byte = extreme_or_any(random, w_kind, 255);
  }
  Bytes values(16);
  for (std::uint8_t& value : values) {
    value = extreme_or_any(random, w_kind, 255);
  }
  call.values = call.bits <= 4 && random() % 2 == 0 ? values.data() : nullptr;
  const auto integers = [&](std::int64_t count, std::int64_t most) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::int32_t& value : values) {
      value = static_cast<std::int32_t>(between(random, -most, most));
    }
    return values;
  };
  const auto floats = [&](std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = std::uniform_real_distribution<float>(0.001f, 2.0f)(random);
    }
    return values;
  };
  const std::int64_t parameters = panels * call.groups * 16;
  const auto x_sums = integers(call.rows * call.groups, 1 << 20), x_zeros = integers(call.rows, random() % 2 == 0 ? 0 : 255);
  const auto w_zeros = integers(parameters, 255), w_sums = integers(parameters, 1 << 20);
  const auto x_scales = floats(call.rows), w_scales = floats(parameters), bias = floats(panels * 16);
  call.segments = segments.data(), call.group_sizes = sizes.data(), call.row_offsets = row_offsets.data();
  call.x_step = static_cast<std::int64_t>(random() % 2), call.y_stride = call.outputs;
  call.x = x.data(), call.x_sums = x_sums.data(), call.x_scales = x_scales.data(), call.x_zeros = x_zeros.data();
  call.panels = packed.data(), call.w_scales = w_scales.data();
  call.w_zeros = random() % 2 == 0 ? w_zeros.data() : nullptr, call.w_zero = w_zeros.front();
  call.w_sums = w_sums.data(), call.bias = random() % 2 == 0 ? bias.data() : nullptr;
  std::vector<float> want(static_cast<std::size_t>(call.rows * call.outputs)), got(want.size());
  call.y = want.data();
  subbyte::reference_linear.linear(call, 0, call.rows, 0, panels);
  call.y = got.data();
  const std::int64_t row = between(random, 0, call.rows), panel = between(random, 0, panels);
  kernels.linear->linear(call, 0, row, 0, panels);  // in pieces, as threads take it
  kernels.linear->linear(call, row, call.rows, 0, panel);
  kernels.linear->linear(call, row, call.rows, panel, panels);
  return std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
}

}  // namespace conformance
