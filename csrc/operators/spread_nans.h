// What NaN in the input of a convolution does: it has no code, and makes all that it goes into NaN, as it would in float.
#pragma once

#include <cstdint>

#include "plane.h"
#include "window.h"

namespace subbyte {

// The result of a convolution.
struct ConvolutionResult {
  Window window;
  std::int64_t groups, outputs_of_group;
  float* y;
  bool channels_last;

  // The outputs of one group whose windows cover a place of the image become NaN.
  void spread_nan(std::int64_t image, std::int64_t group, std::int64_t row, std::int64_t column) const;
};

void spread_nans(const Image& image, const ConvolutionResult& result);

}  // namespace subbyte
