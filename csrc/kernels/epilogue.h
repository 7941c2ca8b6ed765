// What is done with finished results.
#pragma once

#include <stdint.h>

namespace subbyte {

struct EpilogueKernels {
  // values[i] becomes t < low ? low : t > high ? high : t, where t = values[i] + residual[i], or values[i] where there
  // is no residual (null). A NaN stays one; returns whether one is among them.
  bool (*finish)(float* values, int64_t count, const float* residual, float low, float high);
  // The nearest bf16, ties to even; of a NaN 0x7fc0.
  void (*to_bfloat16)(const float* x, int64_t count, uint16_t* y);
};

extern const EpilogueKernels reference_epilogue, avx2_epilogue, avx512_epilogue;

}  // namespace subbyte
