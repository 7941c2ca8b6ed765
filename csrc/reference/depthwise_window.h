// The loops of kernels/depthwise.h, which compilers vectorize well: compiled once for each instruction set.
#pragma once

#include "../kernels/depthwise.h"

namespace subbyte {
namespace {

// `Count` channels from `first`, or fewer where `count` says so.
template <int Count>
inline void add_channels(const Depthwise& call, const int8_t* x, int64_t first, int64_t count, float* y) {
  int32_t total[Count] = {};
  for (int64_t tap = 0; tap < call.taps; ++tap) {
    const int8_t* const at = x + call.tap_offsets[tap] + first;
    const int16_t* const w = call.weights + tap * call.channels + first;
    for (int64_t i = 0; i < count; ++i) {
      total[i] += (at[i] - call.x_zero) * w[i];
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(total[i]) * call.scales[first + i];
    y[first + i] = call.bias == nullptr ? value : value + call.bias[first + i];
  }
}

void window(const Depthwise& call, const int8_t* x, float* y) {
  constexpr int at_once = 32;
  int64_t first = 0;
  for (; first + at_once <= call.channels; first += at_once) {
    add_channels<at_once>(call, x, first, at_once, y);
  }
  if (first < call.channels) {
    add_channels<at_once>(call, x, first, call.channels - first, y);
  }
}

}  // namespace
}  // namespace subbyte
