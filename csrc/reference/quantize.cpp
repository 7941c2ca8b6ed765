// Quantizing in plain C++.
#include "../kernels/quantize.h"

namespace subbyte {
namespace {

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

float snapped(float x, float scale, float low, float high) {
  float steps = __builtin_nearbyintf(x / scale);
  steps = steps < low ? low : steps;
  return steps > high ? high : steps;
}

void snap(const float* x, int64_t count, const Grids& grids, float* steps) {
  for (int64_t i = 0; i < count; ++i) {
    const Grids grid = grids_from(grids, i);
    steps[i] = snapped(x[i], *grid.scales, *grid.lows, *grid.highs);
  }
}

void fake_quantize(const float* x, int64_t count, const Grids& grids, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    const Grids grid = grids_from(grids, i);
    values[i] = snapped(x[i], *grid.scales, *grid.lows, *grid.highs) * *grid.scales;
  }
}

bool codes(const float* x, int64_t count, const Grids& grids, int32_t first, uint8_t* codes) {
  bool any_nan = false;
  for (int64_t i = 0; i < count; ++i) {
    const Grids grid = grids_from(grids, i);
    const float above = snapped(x[i], *grid.scales, *grid.lows, *grid.highs) - *grid.lows;
    const bool is_nan = above != above;
    any_nan = any_nan || is_nan;
    codes[i] = static_cast<uint8_t>((is_nan ? 0 : static_cast<int32_t>(above)) + first);
  }
  return any_nan;
}

struct Terms {
  float of_x, of_scale, of_zero;
};

Terms terms(float x, float y, float scale, float low, float high) {
  const float steps = snapped(x, scale, low, high), quotient = x / scale;
  if (quotient >= low - kSlack && quotient <= high + kSlack) {
    return {y, y * (steps - quotient), 0.0f};
  }
  return {0.0f, y * steps, 0.0f - y * scale};
}

void gradients(const Gradients& run, int64_t count, const Grids& grids) {
  double scale_lanes[kLanes] = {}, zero_lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) {
    const Grids grid = grids_from(grids, i);
    const Terms found = terms(run.x[i], run.y[i], *grid.scales, *grid.lows, *grid.highs);
    run.of_x[i] = run.x[i] > run.above ? found.of_x : 0.0f;
    double* scale_sums = grids.stride == 0 ? scale_lanes + i % kLanes : run.of_scale + i;
    double* zero_sums = grids.stride == 0 ? zero_lanes + i % kLanes : run.of_zero + i;
    *scale_sums += static_cast<double>(found.of_scale);
    *zero_sums += static_cast<double>(found.of_zero);
  }
  if (grids.stride == 0) {
    for (int lane = 0; lane < kLanes; ++lane) {
      *run.of_scale += scale_lanes[lane];
      *run.of_zero += zero_lanes[lane];
    }
  }
}

Range range(const float* x, int64_t count) {
  Range found = {x[0], x[0]};
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] != x[i]) {
      return {x[i], x[i]};
    }
    found.minimum = x[i] < found.minimum ? x[i] : found.minimum;
    found.maximum = x[i] > found.maximum ? x[i] : found.maximum;
  }
  return found;
}

}  // namespace

const QuantizeKernels reference_quantize = {quantize, snap, fake_quantize, codes, gradients, range};

}  // namespace subbyte
