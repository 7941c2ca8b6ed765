#include "plane.h"

#include <atomic>
#include <cstring>

#include "../isa.h"
#include "../kernels/linear.h"
#include "parallel.h"

namespace subbyte {
namespace {

// Bytes [rows, columns] as [columns, rows], rows of the result `stride` apart; four rows at a time make a word.
void transpose(const std::int8_t* from, std::int64_t rows, std::int64_t columns, std::int8_t* to, std::int64_t stride) {
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const std::int8_t* const first = from + row * columns;
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int8_t four[] = {first[i], first[columns + i], first[2 * columns + i], first[3 * columns + i]};
      std::memcpy(to + i * stride + row, four, 4);
    }
  }
  for (; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) {
      to[i * stride + row] = from[row * columns + i];
    }
  }
}

}  // namespace

Plane::Plane(const Image& image, const Window& window, std::int64_t groups, const Affine& affine)
    : window_(window), groups_(groups), channels_(image.channels / groups), filled_(divided_up(channels_, kStep) * kStep) {
  const std::int64_t height = window.height.padded(), images = image.images > 0 ? image.images : 1;
  const std::int64_t places = product_of({images, groups, height, window.width.padded()}, "the padded x");
  const std::int64_t bytes = product_of({places, filled_}, "the padded x");
  codes_.reset(new std::int8_t[static_cast<std::size_t>(bytes)]);
  sums_.reset(new std::int32_t[static_cast<std::size_t>(places)]);
  std::atomic<bool> any_nan{false};
  const std::int64_t grain = divided_up(1 << 13, 1 + window.width.padded() * image.channels);
  in_parallel(image.images * height, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (fill_row(image, i / height, i % height, affine)) {
        any_nan = true;
      }
    }
  });
  any_nan_ = any_nan;
}

std::int64_t Plane::offset(std::int64_t image, std::int64_t group, std::int64_t row, std::int64_t column) const {
  const std::int64_t first = (image * groups_ + group) * window_.height.padded() + row;
  return (first * window_.width.padded() + column) * filled_;
}

bool Plane::fill_row(const Image& image, std::int64_t index, std::int64_t row, const Affine& affine) {
  const std::int64_t width = window_.width.padded();
  const bool is_padding = row < window_.height.padding || row >= window_.height.padding + window_.height.size;
  const auto zero = static_cast<std::int8_t>(affine.zero_point - affine.shift);
  for (std::int64_t group = 0; group < groups_; ++group) {
    std::int8_t* const codes = codes_.get() + offset(index, group, row, 0);
    if (is_padding || window_.width.padding > 0 || filled_ != channels_) {
      for (std::int64_t column = 0; column < width; ++column) {
        const bool is_inside = !is_padding && column >= window_.width.padding && column < width - window_.width.padding;
        std::memset(codes + column * filled_, is_inside ? 0 : zero, static_cast<std::size_t>(channels_));
        std::memset(codes + column * filled_ + channels_, 0, static_cast<std::size_t>(filled_ - channels_));
      }
    }
  }
  const bool any_nan = !is_padding && quantize_row(image, index, row - window_.height.padding, affine);
  const LinearKernels& kernels = *chosen_isa().kernels.linear;
  for (std::int64_t group = 0; group < groups_; ++group) {
    const std::int64_t first = offset(index, group, row, 0);
    for (std::int64_t column = 0; column < width; ++column) {
      sums_[static_cast<std::size_t>(first / filled_ + column)] = kernels.sum(codes_.get() + first + column * filled_, channels_);
    }
  }
  return any_nan;
}

bool Plane::quantize_row(const Image& image, std::int64_t index, std::int64_t row, const Affine& affine) {
  const QuantizeKernels& kernels = *chosen_isa().kernels.quantize;
  const std::int64_t width = window_.width.size, height = window_.height.size, padding = window_.width.padding;
  std::unique_ptr<std::int8_t[]> codes(new std::int8_t[static_cast<std::size_t>(image.channels * width)]);
  bool any_nan = false;
  if (image.channels_last) {
    const float* const x = image.data + (index * height + row) * width * image.channels;
    if (groups_ == 1 && filled_ == channels_) {
      const std::int64_t first = offset(index, 0, row + window_.height.padding, padding);
      return kernels.quantize(x, width * channels_, affine, codes_.get() + first);
    }
    any_nan = kernels.quantize(x, width * image.channels, affine, codes.get());
    for (std::int64_t column = 0; column < width; ++column) {
      for (std::int64_t group = 0; group < groups_; ++group) {
        std::memcpy(codes_.get() + offset(index, group, row + window_.height.padding, column + padding),
                    codes.get() + column * image.channels + group * channels_, static_cast<std::size_t>(channels_));
      }
    }
    return any_nan;
  }
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    const float* const x = image.data + ((index * image.channels + channel) * height + row) * width;
    any_nan = kernels.quantize(x, width, affine, codes.get() + channel * width) || any_nan;
  }
  for (std::int64_t group = 0; group < groups_; ++group) {
    transpose(codes.get() + group * channels_ * width, channels_, width,
              codes_.get() + offset(index, group, row + window_.height.padding, padding), filled_);
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
