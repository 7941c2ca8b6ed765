// Linear layers in plain C++.
#include "../kernels/linear.h"

namespace subbyte {
namespace {

// One code of a block.
uint8_t code_of(const uint8_t* block, int bits, int step, int i) {
  uint8_t code = 0;
  for (int width = 8, shift = 0; width > 0; width /= 2) {
    if ((bits & width) == 0) {
      continue;
    }
    const int in_word = 8 / width;
    const int part = block[64 * (step / in_word) + i] >> (step % in_word * width) & ((1 << width) - 1);
    code = static_cast<uint8_t>(code | part << shift);
    shift += width;
    block += 64 * width;
  }
  return code;
}

void linear(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t m = first_row; m < end_row; ++m) {
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      const uint8_t* packed = call.panels + panel * call.panel_bytes;
      const int8_t* x = call.x + m * call.x_stride;
      float y[kPanel] = {};
      for (int64_t group = 0; group < call.groups; ++group) {
        uint32_t total[kPanel] = {};
        for (int64_t step = 0; step < call.group_steps[group]; ++step, x += kStep) {
          const uint8_t* block = packed + step / kBlockSteps * block_bytes(call.bits);
          for (int i = 0; i < 64; ++i) {
            const uint8_t code = code_of(block, call.bits, static_cast<int>(step % kBlockSteps), i);
            const int w = call.values == nullptr ? code : call.values[code];
            total[i / kStep] += static_cast<uint32_t>(w * x[i % kStep]);
          }
        }
        packed += blocks_of(call.group_steps[group]) * block_bytes(call.bits);
        const int64_t first = (panel * call.groups + group) * kPanel;
        const uint32_t x_sum = static_cast<uint32_t>(call.x_sums[m * call.groups + group]);
        const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m]);
        const uint32_t size = static_cast<uint32_t>(call.group_sizes[group]);
        for (int n = 0; n < kPanel; ++n) {
          const uint32_t w_zero =
              static_cast<uint32_t>(call.w_zeros == nullptr ? call.w_zero : call.w_zeros[first + n]);
          const uint32_t w_sum = static_cast<uint32_t>(call.w_sums[first + n]);
          const uint32_t exact = total[n] - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero;
          const float scale = call.x_scales[m] * call.w_scales[first + n];
          const float term = static_cast<float>(static_cast<int32_t>(exact)) * scale;
          y[n] = group == 0 ? term : y[n] + term;
        }
      }
      for (int n = 0; n < kPanel && panel * kPanel + n < call.outputs; ++n) {
        call.y[m * call.outputs + panel * kPanel + n] =
            call.bias == nullptr ? y[n] : y[n] + call.bias[panel * kPanel + n];
      }
    }
  }
}

}  // namespace

const LinearKernels reference_linear = {linear};

}  // namespace subbyte
