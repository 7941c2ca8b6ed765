// Floats onto a grid of steps: as codes, as steps, as values; and the way gradients go back.
#pragma once

#include <stdint.h>

namespace subbyte {

// How floats become codes, and codes signed bytes.
struct Affine {
  float scale;
  int32_t zero_point, low, high, shift;
};

// The grids of a run of values: steps of `scale`, from `low` to `high` of them, which are whole numbers: the lowest and
// the highest code less the zero point.
struct Grids {
  const float *scales, *lows, *highs;
  int64_t stride;  // 0: the whole run is on one grid; 1: each value on its own
};

// Those of the values from `first` on. Static: each instruction set compiles a copy of its own.
static inline Grids grids_from(const Grids& grids, int64_t first) {
  first *= grids.stride;
  return {grids.scales + first, grids.lows + first, grids.highs + first, grids.stride};
}

// A run of values on their way back.
struct Gradients {
  const float *x, *y;             // the values, and the gradient of what they were quantized to
  float* of_x;                    // a result
  double *of_scale, *of_zero;     // results, added to: one for each grid
  float above;                    // x that is not above it has no gradient: 0 of what a relu gave, else -infinity
};

// The smallest and the largest of some values; both NaN where one of them is.
struct Range {
  float minimum, maximum;
};

// By how many steps a value may lie beyond an end of its grid and be inside: more than the rounding of a quotient, as of
// the largest value over a scale that was found for it.
constexpr float kSlack = 1e-4f;

// Partial sums of a run's gradients: lane i takes values i, i + 16, ...; then the lanes are added in order.
constexpr int kLanes = 16;

struct QuantizeKernels {
  // clamp(round_half_even(x / scale) + zero_point, low, high) - shift; returns whether a NaN was among them.
  bool (*quantize)(const float* x, int64_t count, const Affine& affine, int8_t* codes);
  // steps = clamp(round_half_even(x / scale), low, high). A NaN stays one.
  void (*snap)(const float* x, int64_t count, const Grids& grids, float* steps);
  // steps * scale.
  void (*fake_quantize)(const float* x, int64_t count, const Grids& grids, float* values);
  // steps - low + first, modulo 256; returns whether a NaN was among them.
  bool (*codes)(const float* x, int64_t count, const Grids& grids, int32_t first, uint8_t* codes);
  // With inside = low - kSlack <= x / scale <= high + kSlack, summed in double:
  //   of_x = inside && x > above ? y : 0;  of_scale += y * (inside ? steps - x / scale : steps);  of_zero -= inside ? 0 : y * scale
  void (*gradients)(const Gradients& run, int64_t count, const Grids& grids);
  // Of at least one value.
  Range (*range)(const float* x, int64_t count);
};

extern const QuantizeKernels reference_quantize, avx2_quantize, avx512_quantize;

}  // namespace subbyte
