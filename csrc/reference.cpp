// What every kernel computes, in plain C++.
#include "kernels.h"

namespace subbyte {
namespace {

void pack(const uint8_t* codes, int64_t count, int bits, uint8_t* packed) {
  const uint32_t mask = (1u << bits) - 1;
  uint32_t pending = 0;
  int pending_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    pending |= (codes[i] & mask) << pending_bits;
    pending_bits += bits;
    if (pending_bits >= 8) {
      *packed++ = static_cast<uint8_t>(pending);
      pending >>= 8;
      pending_bits -= 8;
    }
  }
  if (pending_bits > 0) {
    *packed = static_cast<uint8_t>(pending);
  }
}

void unpack(const uint8_t* packed, int64_t count, int bits, bool is_signed, uint8_t* codes) {
  const uint32_t mask = (1u << bits) - 1;
  const uint32_t sign = is_signed ? 1u << (bits - 1) : 0;
  uint32_t pending = 0;
  int pending_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (pending_bits < bits) {
      pending |= static_cast<uint32_t>(*packed++) << pending_bits;
      pending_bits += 8;
    }
    codes[i] = static_cast<uint8_t>(((pending & mask) ^ sign) - sign);
    pending >>= bits;
    pending_bits -= bits;
  }
}

void sign_pack(const float* x, int64_t count, uint8_t* packed) {
  for (int64_t first = 0; first < count; first += 8) {
    const int64_t end = first + 8 < count ? first + 8 : count;
    uint8_t byte = 0;
    for (int64_t i = first; i < end; ++i) {
      byte = static_cast<uint8_t>(byte | (x[i] >= 0.0f) << (i - first));
    }
    *packed++ = byte;
  }
}

bool quantize(const float* x, int64_t count, const Affine& affine, int8_t* codes) {
  bool any_nan = false;
  for (int64_t i = 0; i < count; ++i) {
    float code = __builtin_nearbyintf(x[i] / affine.scale) + static_cast<float>(affine.zero_point);
    any_nan = any_nan || code != code;
    code = code >= static_cast<float>(affine.low) ? code : static_cast<float>(affine.low);
    code = code <= static_cast<float>(affine.high) ? code : static_cast<float>(affine.high);
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code) - affine.shift);
  }
  return any_nan;
}

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
          unpack(packed, 64, call.bits, false, codes);
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

const Kernels reference_kernels = {pack, unpack, sign_pack, quantize, linear};

}  // namespace subbyte
