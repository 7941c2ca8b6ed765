#include "plane.h"

#include <atomic>
#include <cstring>

#include "../isa.h"
#include "../kernels/linear.h"
#include "parallel.h"

namespace subbyte {
namespace {

constexpr std::int64_t kPlaces = 256;     // taken at once: of many channels, so many codes stay near
constexpr std::int64_t kGrain = 1 << 13;  // numbers that one thread takes at least

// Bytes [rows, columns], rows `from_stride` apart, as [columns, rows]; four rows at a time make a word.
void transpose(const std::int8_t* from, std::int64_t rows, std::int64_t columns, std::int64_t from_stride, std::int8_t* to,
               std::int64_t to_stride) {
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const std::int8_t *const first = from + row * from_stride, *const second = first + from_stride;
    const std::int8_t *const third = second + from_stride, *const fourth = third + from_stride;
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int8_t four[] = {first[i], second[i], third[i], fourth[i]};
      std::memcpy(to + i * to_stride + row, four, 4);
    }
  }
  for (; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) {
      to[i * to_stride + row] = from[row * from_stride + i];
    }
  }
}

std::unique_ptr<std::int8_t[]> bytes_for(std::int64_t count) {
  return std::unique_ptr<std::int8_t[]>(new std::int8_t[static_cast<std::size_t>(count)]);
}

}  // namespace

Plane::Plane(const Image& image, const CodeSource& source, const Window& window, std::int64_t groups, const Affine& affine)
    : window_(window), groups_(groups), channels_(image.channels / groups),
      filled_(divided_up(channels_, kStep) * kStep), is_channels_last_(image.channels_last) {
  const std::int64_t height = window.height.padded(), width = window.width.padded();
  const std::int64_t images = image.images > 0 ? image.images : 1;
  const std::int64_t places = product_of({images, groups, height, width}, "the padded x");
  codes_ = bytes_for(product_of({places, filled_}, "the padded x"));
  sums_.reset(new std::int32_t[static_cast<std::size_t>(places)]);
  std::atomic<bool> any_nan{false};
  const std::int64_t rows = divided_up(kPlaces, width), pieces = divided_up(height, rows);
  const std::int64_t grain = divided_up(kGrain, 1 + rows * width * image.channels);
  in_parallel(image.images * pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % pieces * rows;
      if (fill_rows({i / pieces, first, first + rows < height ? first + rows : height}, source, affine)) {
        any_nan = true;
      }
    }
  });
  source.refuse_what_is_outside();
  any_nan_ = any_nan;
}

bool Plane::fill_rows(const Rows& rows, const CodeSource& source, const Affine& affine) {
  const LinearKernels& kernels = *chosen_isa().kernels.linear;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    pad_row(rows.index, row, static_cast<std::int8_t>(affine.zero_point - affine.shift));
  }
  const std::int64_t top = window_.height.padding, bottom = top + window_.height.size;
  const std::int64_t first = rows.begin < top ? top : rows.begin, last = rows.end > bottom ? bottom : rows.end;
  bool any_nan = false;
  if (first < last) {
    const Rows real = {rows.index, first - top, last - top};
    any_nan = is_channels_last_ ? take_channels_last(real, source, affine) : take_row_major(real, source, affine);
  }
  for (std::int64_t group = 0; group < groups_; ++group) {
    const std::int64_t at = offset(rows.index, group, rows.begin, 0);
    const std::int64_t places = (rows.end - rows.begin) * window_.width.padded();
    kernels.sums(codes_.get() + at, places, filled_, sums_.get() + at / filled_);
  }
  return any_nan;
}

// What is not of the image: whole rows, the ends of others, and what fills up the channels.
void Plane::pad_row(std::int64_t index, std::int64_t row, std::int8_t zero) {
  const std::int64_t width = window_.width.padded(), padding = window_.width.padding;
  for (std::int64_t group = 0; group < groups_; ++group) {
    std::int8_t* const codes = codes_.get() + offset(index, group, row, 0);
    fill_places(codes, is_padding(row) ? width : padding, zero);
    fill_places(codes + (width - padding) * filled_, padding, zero);
    for (std::int64_t place = 0; filled_ != channels_ && place < width; ++place) {
      for (std::int64_t channel = channels_; channel < filled_; ++channel) {
        codes[place * filled_ + channel] = 0;
      }
    }
  }
}

void Plane::fill_places(std::int8_t* codes, std::int64_t count, std::int8_t zero) const {
  if (count > 0) {  // few bytes: what fills up the channels is written after
    std::memset(codes, zero, static_cast<std::size_t>(count * filled_));
  }
}

bool Plane::take_channels_last(const Rows& rows, const CodeSource& source, const Affine& affine) {
  const std::int64_t channels = groups_ * channels_;
  const std::int64_t width = window_.width.size, of_row = width * channels, first = rows.index * window_.height.size;
  const bool as_it_lies = groups_ == 1 && filled_ == channels_;
  const std::unique_ptr<std::int8_t[]> row_codes = bytes_for(as_it_lies ? 0 : of_row);
  bool any_nan = false;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t padded_row = row + window_.height.padding;
    std::int8_t* const direct = codes_.get() + offset(rows.index, 0, padded_row, window_.width.padding);
    std::int8_t* const codes = as_it_lies ? direct : row_codes.get();
    any_nan = source.write((first + row) * of_row, of_row, affine, codes) || any_nan;
    for (std::int64_t group = 0; !as_it_lies && group < groups_; ++group) {
      std::int8_t* const to = codes_.get() + offset(rows.index, group, padded_row, window_.width.padding);
      for (std::int64_t place = 0; place < width; ++place) {
        for (std::int64_t channel = 0; channel < channels_; ++channel) {
          to[place * filled_ + channel] = codes[place * channels + group * channels_ + channel];
        }
      }
    }
  }
  return any_nan;
}

// All rows of a channel at once, as they lie side by side.
bool Plane::take_row_major(const Rows& rows, const CodeSource& source, const Affine& affine) {
  const std::int64_t channels = groups_ * channels_;
  const std::int64_t width = window_.width.size, height = window_.height.size, count = (rows.end - rows.begin) * width;
  const std::unique_ptr<std::int8_t[]> codes = bytes_for(channels * count);
  bool any_nan = false;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const std::int64_t first = ((rows.index * channels + channel) * height + rows.begin) * width;
    any_nan = source.write(first, count, affine, codes.get() + channel * count) || any_nan;
  }
  for (std::int64_t group = 0; group < groups_; ++group) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      transpose(codes.get() + group * channels_ * count + (row - rows.begin) * width, channels_, width, count,
                codes_.get() + offset(rows.index, group, row + window_.height.padding, window_.width.padding), filled_);
    }
  }
  return any_nan;
}

void Plane::window_sums(std::int64_t image, std::int64_t group, std::int64_t row, std::int64_t column,
                        std::int64_t count, std::int32_t* sums) const {
  std::memset(sums, 0, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  const std::int64_t stride = window_.width.stride;
  for (std::int64_t i = 0; i < window_.height.kernel; ++i) {
    const std::int64_t at = row * window_.height.stride + i * window_.height.dilation;
    const std::int32_t* const of_row = sums_.get() + offset(image, group, at, column * stride) / filled_;
    for (std::int64_t j = 0; j < window_.width.kernel; ++j) {
      for (std::int64_t k = 0; k < count; ++k) {
        sums[k] += of_row[k * stride + j * window_.width.dilation];
      }
    }
  }
}

}  // namespace subbyte
