// Rows written as columns.
#pragma once

#include <cstdint>

namespace subbyte {

// Numbers [rows, stride] as [columns, step]: `columns` rows of the result, `rows` long.
inline void write_transposed(const std::uint16_t* from, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                             std::uint16_t* to, std::int64_t step) {
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      to[column * step + row] = from[row * stride + column];
    }
  }
}

// The same, four by four.
inline void write_transposed(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                             float* to, std::int64_t step) {
  typedef float Four __attribute__((vector_size(16), aligned(4)));
  typedef int Places __attribute__((vector_size(16)));
  const auto at = [](const float* place) { return *reinterpret_cast<const Four*>(place); };
  // Four columns from end to end: columns are often so far apart that all share a few places of a cache.
  std::int64_t column = 0;
  for (; column + 4 <= columns; column += 4) {
    float* const first = to + column * step;
    std::int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
      const float* const place = from + row * stride + column;
      const Four a = at(place), b = at(place + stride), c = at(place + 2 * stride), d = at(place + 3 * stride);
      const Four ab = __builtin_shuffle(a, b, Places{0, 4, 1, 5}), cd = __builtin_shuffle(c, d, Places{0, 4, 1, 5});
      const Four ef = __builtin_shuffle(a, b, Places{2, 6, 3, 7}), gh = __builtin_shuffle(c, d, Places{2, 6, 3, 7});
      *reinterpret_cast<Four*>(first + row) = __builtin_shuffle(ab, cd, Places{0, 1, 4, 5});
      *reinterpret_cast<Four*>(first + row + step) = __builtin_shuffle(ab, cd, Places{2, 3, 6, 7});
      *reinterpret_cast<Four*>(first + row + 2 * step) = __builtin_shuffle(ef, gh, Places{0, 1, 4, 5});
      *reinterpret_cast<Four*>(first + row + 3 * step) = __builtin_shuffle(ef, gh, Places{2, 3, 6, 7});
    }
    for (; row < rows; ++row) {
      for (std::int64_t i = 0; i < 4; ++i) {
        first[i * step + row] = from[row * stride + column + i];
      }
    }
  }
  for (; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      to[column * step + row] = from[row * stride + column];
    }
  }
}

}  // namespace subbyte
