// The taps of a convolution as segments of a row.
#pragma once

#include <cstdint>

#include "product.h"
#include "window.h"

namespace subbyte {

// Taps that lie side by side in a plane: a row of the kernel, or each by itself where it is dilated.
template <typename Plane>
Segments segments_of(const Window& window, const Plane& plane, std::int64_t channels) {
  Segments all;
  const bool by_tap = window.width.dilation > 1;
  const std::int64_t taps = by_tap ? 1 : window.width.kernel, count = window.taps() / taps;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = by_tap ? i / window.width.kernel : i, column = by_tap ? i % window.width.kernel : 0;
    const std::int64_t offset = plane.offset(0, 0, row * window.height.dilation, column * window.width.dilation);
    all.add({taps * plane.filled() / kStep, offset, 0, i == 0, i + 1 == count});
  }
  all.group_sizes.push_back(window.taps() * channels);
  return all;
}

}  // namespace subbyte
