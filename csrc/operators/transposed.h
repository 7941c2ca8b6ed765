// Rows of results written as columns.
#pragma once

#include <cstdint>

namespace subbyte {

// Floats [rows, stride] as [columns, step]: `columns` rows of the result, `rows` long. Eight of them at a time are
// written side by side: with more, of a `step` that is a power of two, they would drive each other from the cache.
inline void write_transposed(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                             float* to, std::int64_t step) {
  typedef float Four __attribute__((vector_size(16), aligned(4)));
  typedef int Places __attribute__((vector_size(16)));
  const auto at = [](const float* place) { return *reinterpret_cast<const Four*>(place); };
  for (std::int64_t first = 0; first < columns; first += 8) {
    const std::int64_t end = first + 8 < columns ? first + 8 : columns;
    std::int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
      std::int64_t column = first;
      for (; column + 4 <= end; column += 4) {
        const float* const place = from + row * stride + column;
        const Four a = at(place), b = at(place + stride), c = at(place + 2 * stride), d = at(place + 3 * stride);
        const Four ab = __builtin_shuffle(a, b, Places{0, 4, 1, 5}), cd = __builtin_shuffle(c, d, Places{0, 4, 1, 5});
        const Four ef = __builtin_shuffle(a, b, Places{2, 6, 3, 7}), gh = __builtin_shuffle(c, d, Places{2, 6, 3, 7});
        float* const result = to + column * step + row;
        *reinterpret_cast<Four*>(result) = __builtin_shuffle(ab, cd, Places{0, 1, 4, 5});
        *reinterpret_cast<Four*>(result + step) = __builtin_shuffle(ab, cd, Places{2, 3, 6, 7});
        *reinterpret_cast<Four*>(result + 2 * step) = __builtin_shuffle(ef, gh, Places{0, 1, 4, 5});
        *reinterpret_cast<Four*>(result + 3 * step) = __builtin_shuffle(ef, gh, Places{2, 3, 6, 7});
      }
      for (; column < end; ++column) {
        for (std::int64_t i = row; i < row + 4; ++i) {
          to[column * step + i] = from[i * stride + column];
        }
      }
    }
    for (; row < rows; ++row) {
      for (std::int64_t column = first; column < end; ++column) {
        to[column * step + row] = from[row * stride + column];
      }
    }
  }
}

}  // namespace subbyte
