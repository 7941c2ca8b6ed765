// Linear layers on floats in plain C++.
#include "../kernels/float_linear.h"

#include "code.h"

namespace subbyte {
namespace {

float value_of(const FloatLinear& call, const uint8_t* packed, int64_t step, int i) {
  const uint8_t* block = packed + step / kBlockSteps * block_bytes(call.bits);
  const uint8_t code = code_of(block, call.bits, static_cast<int>(step % kBlockSteps), i);
  return call.bits <= 4 ? call.values[code] : static_cast<float>(code);
}

void row_of_panel(const FloatLinear& call, int64_t m, int64_t panel) {
  const uint8_t* packed = call.panels + panel * call.panel_bytes;
  float y[kPanel] = {};
  float total[kPanel] = {};
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    const float* x = call.x + call.row_offsets[m] + segment.x_offset;
    const int64_t first = (panel * call.groups + segment.group) * kPanel;
    for (int n = 0; n < kPanel; ++n) {
      const float zero = call.w_zeros == nullptr ? 0.0f : call.w_zeros[first + n];
      total[n] = segment.begins_group ? 0.0f : total[n];
      for (int64_t k = 0; k < kStep * segment.steps; ++k) {
        const float w = value_of(call, packed, k / kStep, static_cast<int>(kStep * n + k % kStep)) - zero;
        total[n] = __builtin_fmaf(x[k], w, total[n]);
      }
      y[n] = segment.ends_group ? __builtin_fmaf(total[n], call.w_scales[first + n], y[n]) : y[n];
    }
    packed += blocks_of(segment.steps) * block_bytes(call.bits);
  }
  for (int64_t n = panel * kPanel; n < (panel + 1) * kPanel && n < call.outputs; ++n) {
    call.y[m * call.y_stride + n - call.y_origin] = call.bias == nullptr ? y[n % kPanel] : y[n % kPanel] + call.bias[n];
  }
}

void linear(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t m = first_row; m < end_row; ++m) {
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      row_of_panel(call, m, panel);
    }
  }
}

}  // namespace

const FloatLinearKernels reference_float_linear = {linear};

}  // namespace subbyte
