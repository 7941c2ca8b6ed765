// The loops of kernels/epilogue.h, which compilers vectorize well: compiled once for each instruction set.
#pragma once

#include "../kernels/epilogue.h"

namespace subbyte {
namespace {

template <bool HasResidual>
inline bool finish_all(float* values, int64_t count, const float* residual, float low, float high) {
  int32_t any_nan = 0;
  for (int64_t i = 0; i < count; ++i) {
    float value = HasResidual ? values[i] + residual[i] : values[i];
    any_nan |= value != value;
    value = value < low ? low : value;
    values[i] = value > high ? high : value;
  }
  return any_nan != 0;
}

bool finish(float* values, int64_t count, const float* residual, float low, float high) {
  return residual == nullptr ? finish_all<false>(values, count, residual, low, high)
                             : finish_all<true>(values, count, residual, low, high);
}

void to_bfloat16(const float* x, int64_t count, uint16_t* y) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    y[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

}  // namespace
}  // namespace subbyte
