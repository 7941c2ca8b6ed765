// Linear layers in plain C++.
#include "../kernels/linear.h"
#include "../kernels/packing.h"

namespace subbyte {
namespace {

void linear(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  uint8_t codes[64];
  for (int64_t m = first_row; m < end_row; ++m) {
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      const uint8_t* packed = call.panels + panel * call.steps * 8 * call.bits;
      const int8_t* x = call.x + m * 4 * call.steps;
      float y[16] = {};
      for (int64_t group = 0; group < call.groups; ++group) {
        uint32_t total[16] = {};
        for (int64_t step = 0; step < call.group_steps[group]; ++step, packed += 8 * call.bits, x += 4) {
          reference_packing.unpack(packed, 64, call.bits, false, codes);
          for (int i = 0; i < 64; ++i) {
            total[i / 4] += static_cast<uint32_t>(codes[i] * x[i % 4]);
          }
        }
        const int64_t first = (panel * call.groups + group) * 16;
        const uint32_t x_sum = static_cast<uint32_t>(call.x_sums[m * call.groups + group]);
        const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m]);
        const uint32_t size = static_cast<uint32_t>(call.group_sizes[group]);
        for (int n = 0; n < 16; ++n) {
          const uint32_t w_zero = static_cast<uint32_t>(call.w_zeros[first + n]);
          const uint32_t w_sum = static_cast<uint32_t>(call.w_sums[first + n]);
          const uint32_t exact = total[n] - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero;
          const float scale = call.x_scales[m] * call.w_scales[first + n];
          const float term = static_cast<float>(static_cast<int32_t>(exact)) * scale;
          y[n] = group == 0 ? term : y[n] + term;
        }
      }
      for (int n = 0; n < 16 && panel * 16 + n < call.outputs; ++n) {
        call.y[m * call.outputs + panel * 16 + n] = call.bias == nullptr ? y[n] : y[n] + call.bias[panel * 16 + n];
      }
    }
  }
}

}  // namespace

const LinearKernels reference_linear = {linear};

}  // namespace subbyte
