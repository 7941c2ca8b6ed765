#include "spread_nans.h"

#include <cmath>
#include <limits>

namespace subbyte {

void ConvolutionResult::spread_nan(std::int64_t image, std::int64_t group, std::int64_t row, std::int64_t column) const {
  const Axis &height = window.height, &width = window.width;
  const std::int64_t windows = height.outputs() * width.outputs(), outputs = groups * outputs_of_group;
  for (std::int64_t tap = 0; tap < window.taps(); ++tap) {
    const std::int64_t top = row + height.padding - tap / width.kernel * height.dilation;
    const std::int64_t left = column + width.padding - tap % width.kernel * width.dilation;
    const std::int64_t i = top / height.stride, j = left / width.stride;
    if (top < 0 || left < 0 || top % height.stride != 0 || left % width.stride != 0 || i >= height.outputs() ||
        j >= width.outputs()) {
      continue;
    }
    const std::int64_t at = i * width.outputs() + j;
    for (std::int64_t n = group * outputs_of_group; n < (group + 1) * outputs_of_group; ++n) {
      const std::int64_t place = channels_last ? (image * windows + at) * outputs + n : (image * outputs + n) * windows + at;
      y[place] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

void spread_nans(const Image& image, const ConvolutionResult& result) {
  const std::int64_t width = result.window.width.size, places = result.window.height.size * width;
  const std::int64_t of_image = image.channels * places;
  for (std::int64_t i = 0; i < image.images * of_image; ++i) {
    if (!std::isnan(image.data[i])) {
      continue;
    }
    const std::int64_t channel = image.channels_last ? i % image.channels : i % of_image / places;
    const std::int64_t place = image.channels_last ? i % of_image / image.channels : i % places;
    result.spread_nan(i / of_image, channel / (image.channels / result.groups), place / width, place % width);
  }
}

}  // namespace subbyte
