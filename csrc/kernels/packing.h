// Dense streams of codes.
#pragma once

#include <stdint.h>

namespace subbyte {

struct PackingKernels {
  // Codes into a stream of `bits` bits each, low bits first. `count` codes; the last byte's unused bits are 0.
  void (*pack)(const uint8_t* codes, int64_t count, int bits, uint8_t* packed);
  // The way back; where `is_signed`, the highest bit of a code is its sign and fills the byte.
  void (*unpack)(const uint8_t* packed, int64_t count, int bits, bool is_signed, uint8_t* codes);
  // Bit i is 1 where x[i] >= 0, NaN as 0: sign(0) = +1.
  void (*sign_pack)(const float* x, int64_t count, uint8_t* packed);
};

extern const PackingKernels reference_packing, avx2_packing, avx512_packing, neon_packing;

}  // namespace subbyte
