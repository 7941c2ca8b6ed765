// The geometry of a two-dimensional convolution.
#pragma once

#include <cstdint>
#include <string>

#include "../torch/torch_api.h"
#include "require.h"

namespace subbyte {

// One axis: its kernel of `kernel` taps, `dilation` apart, moves by `stride` over `size` places and `padding` at each end.
struct Axis {
  std::int64_t size, kernel, stride, padding, dilation;

  std::int64_t padded() const { return size + 2 * padding; }
  std::int64_t outputs() const { return (padded() - dilation * (kernel - 1) - 1) / stride + 1; }

  void check(const std::string& name) const {
    require(kernel > 0 && stride > 0 && padding >= 0 && dilation > 0,
            "the " + name + " of a kernel, its stride and dilation are positive, its padding not negative");
    require(kernel < (1 << 20) && stride < (1 << 20) && padding < (1 << 20) && dilation < (1 << 20),
            "the " + name + " of a kernel, its stride, padding or dilation is too large");
    require(size < (1 << 30), "the " + name + " of x is too large");
    require(padded() >= dilation * (kernel - 1) + 1, "the kernel is larger than the padded " + name + " of x");
  }
};

struct Window {
  Axis height, width;

  // From the numbers (kernel_height, kernel_width, stride_height, ..., dilation_width).
  Window(std::int64_t rows, std::int64_t columns, const StackValue* numbers)
      : height{rows, at(numbers, 0), at(numbers, 2), at(numbers, 4), at(numbers, 6)},
        width{columns, at(numbers, 1), at(numbers, 3), at(numbers, 5), at(numbers, 7)} {
    height.check("height");
    width.check("width");
  }

  std::int64_t taps() const { return height.kernel * width.kernel; }

 private:
  static std::int64_t at(const StackValue* numbers, int i) { return static_cast<std::int64_t>(numbers[i]); }
};

}  // namespace subbyte
