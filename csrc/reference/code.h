// One code of a packed block (kernels/linear.h).
#pragma once

#include <stdint.h>

namespace subbyte {
namespace {

inline uint8_t code_of(const uint8_t* block, int bits, int step, int i) {
  uint8_t code = 0;
  for (int width = 8, shift = 0; width > 0; width /= 2) {
    if ((bits & width) == 0) {
      continue;
    }
    const int in_word = 8 / width;
    const int part = block[64 * (step / in_word) + i] >> (step % in_word * width) & ((1 << width) - 1);
    code = static_cast<uint8_t>(code | part << shift);
    shift += width;
    block += 64 * width;
  }
  return code;
}

}  // namespace
}  // namespace subbyte
