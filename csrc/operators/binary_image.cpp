#include "binary_image.h"

#include <algorithm>
#include <cstring>

#include "../isa.h"

namespace subbyte {
namespace {

// Some bits, 64 at most, of each of several pixels.
struct BitFields {
  const std::uint8_t* bytes;  // the first that holds bits of the first pixel
  std::int64_t bytes_of_pixel, pixels, shift, count;
};

// Bytes: that hold bits of one pixel; no other is read.
template <int Bytes>
void write_fields(const BitFields& from, std::uint64_t* words) {
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - from.count);
  const std::uint8_t* pixel = from.bytes;
  for (std::int64_t i = 0; i < from.pixels; ++i, pixel += from.bytes_of_pixel) {
    std::uint64_t word = 0;
    std::memcpy(&word, pixel, Bytes < 8 ? Bytes : 8);
    word >>= from.shift;
    if (Bytes > 8) {
      word |= static_cast<std::uint64_t>(pixel[8]) << (64 - from.shift);
    }
    words[i] = word & mask;
  }
}

}  // namespace

ComparedImage::ComparedImage(const BinaryShape& shape, const BinaryArguments& arguments, const Image& image)
    : shape_(shape), image_(image) {
  for (std::int64_t plane = 0; plane < arguments.levels.planes(); ++plane) {
    thresholds_.push_back(arguments.levels.threshold(plane, *arguments.x_scale.data<float>(),
                                                     *arguments.x_zero_point.data<std::int32_t>()));
  }
}

void ComparedImage::write(std::int64_t image, std::int64_t plane, std::int64_t group, std::int64_t row,
                       std::uint64_t* words) const {
  const std::int64_t rows = shape_.window.height.size, columns = shape_.window.width.size;
  const std::int64_t channels = shape_.group_channels(), first = group * channels;
  const float* const start = image_.data + image * shape_.channels * rows * columns;
  Thresholding call{};
  call.rows = columns, call.count = channels;
  if (image_.channels_last) {
    call.x = start + row * columns * shape_.channels + first;
    call.x_row = shape_.channels, call.x_step = 1;
  } else {
    call.x = start + (first * rows + row) * columns;
    call.x_row = 1, call.x_step = rows * columns;
  }
  call.thresholds = &thresholds_[static_cast<std::size_t>(plane)];
  call.words = words, call.word_row = 1, call.word_step = shape_.image_words();
  chosen_isa().kernels.binary->threshold(call);
}

void PackedImage::write(std::int64_t image, std::int64_t, std::int64_t group, std::int64_t row,
                        std::uint64_t* words) const {
  const std::int64_t columns = shape_.window.width.size, bytes = bytes_of_pixel(shape_.channels);
  const std::uint8_t* const pixels = bytes_ + (image * shape_.window.height.size + row) * columns * bytes;
  const std::int64_t begin = group * shape_.group_channels(), end = begin + shape_.group_channels();
  constexpr void (*kByBytes[])(const BitFields&, std::uint64_t*) = {
      write_fields<1>, write_fields<2>, write_fields<3>, write_fields<4>, write_fields<5>,
      write_fields<6>, write_fields<7>, write_fields<8>, write_fields<9>};
  for (std::int64_t channel = begin; channel < end; channel += 64, words += shape_.image_words()) {
    const std::int64_t count = std::min<std::int64_t>(end - channel, 64), shift = channel % 8;
    kByBytes[divided_up(shift + count, 8) - 1]({pixels + channel / 8, bytes, columns, shift, count}, words);
  }
}

}  // namespace subbyte
