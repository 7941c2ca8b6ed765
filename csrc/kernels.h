// The table of kernels: one for each instruction set, and the plain one that says what all of them compute.
//
// The files that fill it include nothing but <stdint.h> and intrinsics: a function of the standard library that the
// compiler emits there, with their flags, could be the copy that the linker keeps for every CPU.
#pragma once

#include <stdint.h>

namespace subbyte {

struct Kernels {
  // Codes into a stream of `bits` bits each, low bits first. `count` codes; the last byte's unused bits are 0.
  void (*pack)(const uint8_t* codes, int64_t count, int bits, uint8_t* packed);
  // The way back; where `is_signed`, the highest bit of a code is its sign and fills the byte.
  void (*unpack)(const uint8_t* packed, int64_t count, int bits, bool is_signed, uint8_t* codes);
  // Bit i is 1 where x[i] >= 0, NaN as 0: sign(0) = +1.
  void (*sign_pack)(const float* x, int64_t count, uint8_t* packed);
};

extern const Kernels reference_kernels;
#ifdef SUBBYTE_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif
#ifdef SUBBYTE_ARM
extern const Kernels neon_kernels;
#endif

}  // namespace subbyte
