// Steps of a packed block (kernels/linear.h) cut out in registers.
#pragma once

#include <arm_neon.h>

#include "../kernels/linear.h"

namespace subbyte {
namespace {

// Part of `Width` bits of step `Step`, moved up to bit `Place`.
template <int Width, int Step, int Place>
inline uint8x16_t part_of(const uint8_t* words) {
  constexpr int in_word = 8 / Width;
  constexpr int shift = Step % in_word * Width;
  uint8x16_t word = vld1q_u8(words + 64 * (Step / in_word));
  if constexpr (shift > 0) {
    word = vshrq_n_u8(word, shift);
  }
  if constexpr (shift + Width < 8) {
    word = vandq_u8(word, vdupq_n_u8((1 << Width) - 1));
  }
  if constexpr (Place > 0) {
    word = vshlq_n_u8(word, Place);
  }
  return word;
}

// The codes of four outputs in one step, as bytes; the next four lie 16 bytes on.
template <int Bits, int Step>
inline uint8x16_t codes_of(const uint8_t* block) {
  constexpr int top = Bits >= 8 ? 8 : Bits >= 4 ? 4 : Bits >= 2 ? 2 : 1;
  uint8x16_t codes = part_of<top, Step, 0>(block);
  if constexpr (Bits == 6 || Bits == 7) {
    codes = vorrq_u8(codes, part_of<2, Step, 4>(block + 256));
  }
  if constexpr (Bits == 3 || Bits == 5 || Bits == 7) {
    codes = vorrq_u8(codes, part_of<1, Step, Bits - 1>(block + 64 * (Bits - 1)));
  }
  return codes;
}

// Whether what codes stand for needs 128 taken off to be signed bytes.
template <int Bits, bool Table>
constexpr bool is_shifted() {
  return Table || Bits == 8;
}

// Writes the first `steps` steps of a block as signed bytes, 64 each: the codes or what the table has for them.
template <int Bits, bool Table, int Step>
inline void unpack_block(const uint8_t* block, int64_t steps, uint8x16_t table, int8_t* to) {
  if constexpr (Step < kBlockSteps) {
    if (Step < steps) {
      for (int part = 0; part < 64; part += 16) {
        uint8x16_t values = codes_of<Bits, Step>(block + part);
        if constexpr (Table) {
          values = vqtbl1q_u8(table, values);
        }
        if constexpr (is_shifted<Bits, Table>()) {
          values = veorq_u8(values, vdupq_n_u8(128));
        }
        vst1q_s8(to + 64 * Step + part, vreinterpretq_s8_u8(values));
      }
      unpack_block<Bits, Table, Step + 1>(block, steps, table, to);
    }
  }
}

}  // namespace
}  // namespace subbyte
