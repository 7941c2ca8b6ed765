// The input of a convolution of floats: padded, channels innermost, the channels of each group by themselves.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "../kernels/linear.h"
#include "parallel.h"
#include "require.h"
#include "transposed.h"
#include "window.h"

namespace subbyte {

// Where numbers lie, of axes (image, channel, row, column).
template <typename Number>
struct FloatImage {
  const Number* data;
  std::int64_t images, channels;
  bool channels_last;  // else row-major
};

template <typename Number>
class FloatPlane {
 public:
  // Of [images, groups, padded height, padded width, filled]: `filled` are the channels of a group, filled up to whole
  // steps. All that is not of the image is 0.
  FloatPlane(const FloatImage<Number>& image, const Window& window, std::int64_t groups)
      : window_(window), groups_(groups), channels_(image.channels / groups), filled_(divided_up(channels_, kStep) * kStep) {
    const std::int64_t height = window.height.padded(), width = window.width.padded();
    const std::int64_t images = image.images > 0 ? image.images : 1;
    const std::int64_t count = product_of({images, groups, height, width, filled_}, "the padded x");
    numbers_.reset(new Number[static_cast<std::size_t>(count)]);
    in_parallel(image.images * height, divided_up(1 << 13, 1 + width * image.channels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        fill_row(image, i / height, i % height);
      }
    });
  }

  const Number* numbers() const { return numbers_.get(); }
  std::int64_t filled() const { return filled_; }
  // Of the first number of a place in the padded image.
  std::int64_t offset(std::int64_t image, std::int64_t group, std::int64_t row, std::int64_t column) const {
    const std::int64_t first = (image * groups_ + group) * window_.height.padded() + row;
    return (first * window_.width.padded() + column) * filled_;
  }

 private:
  void fill_row(const FloatImage<Number>& image, std::int64_t index, std::int64_t row) {
    const Axis &height = window_.height, &width = window_.width;
    const std::int64_t from = row - height.padding;
    const bool is_inside = from >= 0 && from < height.size;
    for (std::int64_t group = 0; group < groups_; ++group) {
      Number* const to = numbers_.get() + offset(index, group, row, 0);
      if (!is_inside || width.padding > 0 || filled_ != channels_) {
        std::memset(to, 0, static_cast<std::size_t>(width.padded() * filled_) * sizeof(Number));
      }
      if (is_inside) {
        copy_row(image, index, group, from, to + width.padding * filled_);
      }
    }
  }

  void copy_row(const FloatImage<Number>& image, std::int64_t index, std::int64_t group, std::int64_t row, Number* to) const {
    const std::int64_t width = window_.width.size, height = window_.height.size, first = group * channels_;
    if (!image.channels_last) {
      const Number* const from = image.data + ((index * image.channels + first) * height + row) * width;
      return write_transposed(from, channels_, width, height * width, to, filled_);
    }
    const Number* const from = image.data + (index * height + row) * width * image.channels + first;
    for (std::int64_t column = 0; column < width; ++column) {
      std::memcpy(to + column * filled_, from + column * image.channels, static_cast<std::size_t>(channels_) * sizeof(Number));
    }
  }

  Window window_;
  std::int64_t groups_, channels_, filled_;  // channels: of a group
  std::unique_ptr<Number[]> numbers_;
};

}  // namespace subbyte
