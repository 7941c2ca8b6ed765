// The input of a convolution as codes: padded, channels innermost, the channels of each group by themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../kernels/quantize.h"
#include "code_source.h"
#include "window.h"

namespace subbyte {

// Where numbers lie, of axes (image, channel, row, column).
struct Image {
  const float* data;  // null, where they are codes
  std::int64_t images, channels;
  bool channels_last;  // else row-major
};

class Plane {
 public:
  // Of [images, groups, padded height, padded width, filled]: `filled` are the channels of a group, filled up to whole
  // steps with bytes of 0. What pads the image is the code of 0.
  Plane(const Image& image, const CodeSource& source, const Window& window, std::int64_t groups, const Affine& affine);

  const std::int8_t* codes() const { return codes_.get(); }
  std::int64_t filled() const { return filled_; }
  std::int64_t pixels_of_group() const { return window_.height.padded() * window_.width.padded(); }
  // Of the first code of a place in the padded image.
  std::int64_t offset(std::int64_t image, std::int64_t group, std::int64_t row, std::int64_t column) const {
    const std::int64_t first = (image * groups_ + group) * window_.height.padded() + row;
    return (first * window_.width.padded() + column) * filled_;
  }
  // Whether a NaN was in the image.
  bool any_nan() const { return any_nan_; }
  // For `count` windows of a row of outputs: the sum of all codes that each covers.
  void window_sums(std::int64_t image, std::int64_t group, std::int64_t row, std::int64_t column, std::int64_t count,
                   std::int32_t* sums) const;

 private:
  // Some rows of the image `index`.
  struct Rows {
    std::int64_t index, begin, end;
  };

  // Of the padded image; what take_... take are those of the image itself. They return whether a NaN was among them.
  bool fill_rows(const Rows& rows, const CodeSource& source, const Affine& affine);
  bool take_channels_last(const Rows& rows, const CodeSource& source, const Affine& affine);
  bool take_row_major(const Rows& rows, const CodeSource& source, const Affine& affine);
  void pad_row(std::int64_t index, std::int64_t row, std::int8_t zero);
  void fill_places(std::int8_t* codes, std::int64_t count, std::int8_t zero) const;
  bool is_padding(std::int64_t row) const {
    return row < window_.height.padding || row >= window_.height.padding + window_.height.size;
  }

  Window window_;
  std::int64_t groups_, channels_, filled_;  // channels: of a group
  bool is_channels_last_;
  std::unique_ptr<std::int8_t[]> codes_;
  std::unique_ptr<std::int32_t[]> sums_;  // of each place
  bool any_nan_ = false;
};

}  // namespace subbyte
