#include "binary_shape.h"

namespace subbyte {

TapClasses::TapClasses(const Axis& axis) {
  for (std::int64_t position = 0; position < axis.outputs(); ++position) {
    const auto place = [&](std::int64_t tap) { return position * axis.stride - axis.padding + tap * axis.dilation; };
    Range range{0, 0};
    while (range.first < axis.kernel && place(range.first) < 0) {
      ++range.first;
    }
    range.end = range.first;
    while (range.end < axis.kernel && place(range.end) < axis.size) {
      ++range.end;
    }
    // Neighbours are mostly alike, so the class is sought from the last.
    std::size_t known = ranges.size();
    while (known > 0 && (ranges[known - 1].first != range.first || ranges[known - 1].end != range.end)) {
      --known;
    }
    if (known == 0) {
      ranges.push_back(range);
      known = ranges.size();
    }
    of_position.push_back(static_cast<std::int32_t>(known - 1));
  }
}

std::int64_t BinaryShape::taps_of_word() const {
  const std::int64_t fitting = 64 / group_channels();
  return fitting < 1 ? 1 : fitting < window.width.kernel ? fitting : window.width.kernel;
}

std::vector<std::int64_t> BinaryShape::offsets() const {
  std::vector<std::int64_t> found;
  for (std::int64_t row = 0; row < window.height.kernel; ++row) {
    for (std::int64_t tap = 0; tap < window.width.kernel; tap += taps_of_word()) {
      for (std::int64_t word = 0; word < words_of_pixel(); ++word) {
        found.push_back(word * image_words() + row * window.height.dilation * window.width.padded() +
                        tap * window.width.dilation);
      }
    }
  }
  return found;
}

}  // namespace subbyte
