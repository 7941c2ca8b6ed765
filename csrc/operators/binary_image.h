// The input of a binary convolution, from which words of bits are made row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "binary.h"
#include "binary_shape.h"
#include "plane.h"

namespace subbyte {

class BinaryImage {
 public:
  virtual ~BinaryImage() = default;

  // One plane of one group in one row of pixels: word k of pixel i becomes words[k * image_words + i] of the shape.
  virtual void write(std::int64_t image, std::int64_t plane, std::int64_t group, std::int64_t row,
                     std::uint64_t* words) const = 0;
};

// Floats, compared with the threshold of each plane.
class ComparedImage : public BinaryImage {
 public:
  ComparedImage(const BinaryShape& shape, const BinaryArguments& arguments, const Image& image);
  void write(std::int64_t image, std::int64_t plane, std::int64_t group, std::int64_t row,
             std::uint64_t* words) const override;

 private:
  const BinaryShape& shape_;
  const Image image_;
  std::vector<float> thresholds_;
};

// Bits packed by somebody else, of one plane: [images, rows, columns, bytes], the channels of a pixel from the lowest
// bit of its first byte on. What fills the last byte is ignored.
class PackedImage : public BinaryImage {
 public:
  PackedImage(const BinaryShape& shape, const std::uint8_t* bytes) : shape_(shape), bytes_(bytes) {}
  static std::int64_t bytes_of_pixel(std::int64_t channels) { return divided_up(channels, 8); }
  void write(std::int64_t image, std::int64_t plane, std::int64_t group, std::int64_t row,
             std::uint64_t* words) const override;

 private:
  const BinaryShape& shape_;
  const std::uint8_t* bytes_;
};

}  // namespace subbyte
