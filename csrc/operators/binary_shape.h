// The shapes of a binary convolution, and how its input lies as words of bits.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel.h"
#include "window.h"

namespace subbyte {

// For each output position along an axis, which class of kernel taps it reads that are not padding.
struct TapClasses {
  struct Range {
    std::int64_t first, end;
  };
  std::vector<Range> ranges;              // of each class
  std::vector<std::int32_t> of_position;  // [outputs]

  explicit TapClasses(const Axis& axis);
};

struct BinaryShape {
  std::int64_t images, channels, outputs, groups;
  Window window;

  std::int64_t group_channels() const { return channels / groups; }
  std::int64_t group_outputs() const { return outputs / groups; }

  // A word holds 64 channels of a pixel; or, where the channels are few, all of several taps side by side.
  std::int64_t words_of_pixel() const { return divided_up(group_channels(), 64); }
  std::int64_t taps_of_word() const;
  std::int64_t words() const {
    return product_of({window.height.kernel, divided_up(window.width.kernel, taps_of_word()), words_of_pixel()},
                      "the packed weight");
  }

  // Outputs of one channel of one image.
  std::int64_t places() const { return window.height.outputs() * window.width.outputs(); }
  // Words of one channel word of the padded image, one for each pixel.
  std::int64_t image_words() const { return window.height.padded() * window.width.padded(); }
  // Where the words that one output reads lie, from the first.
  std::vector<std::int64_t> offsets() const;
};

}  // namespace subbyte
