// Linear layers in plain C++.
#include "../kernels/linear.h"

#include "code.h"

namespace subbyte {
namespace {

// The exact sums of one group of 16 outputs, scaled and added to y.
void add_group(const Linear& call, const uint32_t* total, int64_t m, int64_t panel, int64_t group, float* y) {
  const int64_t first = (panel * call.groups + group) * kPanel;
  const uint32_t x_sum = static_cast<uint32_t>(call.x_sums[m * call.groups + group]);
  const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m * call.x_step]);
  const uint32_t size = static_cast<uint32_t>(call.group_sizes[group]);
  for (int n = 0; n < kPanel; ++n) {
    const uint32_t w_zero = static_cast<uint32_t>(call.w_zeros == nullptr ? call.w_zero : call.w_zeros[first + n]);
    const uint32_t w_sum = static_cast<uint32_t>(call.w_sums[first + n]);
    const uint32_t exact = total[n] - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero;
    const float scale = call.x_scales[m * call.x_step] * call.w_scales[first + n];
    const float term = static_cast<float>(static_cast<int32_t>(exact)) * scale;
    y[n] = group == 0 ? term : y[n] + term;
  }
}

void row_of_panel(const Linear& call, int64_t m, int64_t panel) {
  const uint8_t* packed = call.panels + panel * call.panel_bytes;
  uint32_t total[kPanel] = {};
  float y[kPanel] = {};
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    const int8_t* x = call.x + call.row_offsets[m] + segment.x_offset;
    for (int64_t step = 0; step < segment.steps; ++step, x += kStep) {
      const uint8_t* block = packed + step / kBlockSteps * block_bytes(call.bits);
      for (int byte = 0; byte < 64; ++byte) {
        const uint8_t code = code_of(block, call.bits, static_cast<int>(step % kBlockSteps), byte);
        const int w = call.values == nullptr ? code : call.values[code];
        total[byte / kStep] += static_cast<uint32_t>(w * x[byte % kStep]);
      }
    }
    packed += blocks_of(segment.steps) * block_bytes(call.bits);
    if (segment.ends_group) {
      add_group(call, total, m, panel, segment.group, y);
      for (uint32_t& each : total) {
        each = 0;
      }
    }
  }
  float* const to = call.y + m * call.y_stride - call.y_origin;
  for (int64_t n = panel * kPanel; n < (panel + 1) * kPanel && n < call.outputs; ++n) {
    to[n] = call.bias == nullptr ? y[n % kPanel] : y[n % kPanel] + call.bias[n];
  }
}

void linear(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t m = first_row; m < end_row; ++m) {
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      row_of_panel(call, m, panel);
    }
  }
}

int32_t sum(const int8_t* x, int64_t count) {
  int32_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += x[i];
  }
  return total;
}

void sums(const int8_t* x, int64_t places, int64_t bytes, int32_t* sums) {
  for (int64_t i = 0; i < places; ++i) {
    sums[i] = sum(x + i * bytes, bytes);
  }
}

}  // namespace

const LinearKernels reference_linear = {linear, sum, sums};

}  // namespace subbyte
